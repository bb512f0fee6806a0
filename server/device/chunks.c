#include "server/device/chunks.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

union ancillary {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(KVD_LINK_FDS_MAX * sizeof(int))];
};

kvarn_status kvd_chunks_send(int control, uint32_t first, const int *fds, uint32_t count)
{
    if (count == 0 || count > KVD_LINK_FDS_MAX)
        return KVARN_INTERNAL;
    struct kvd_link_chunks chunks = {.kind = KVD_LINK_CHUNKS, .first = first, .count = count};
    struct iovec iov = {.iov_base = &chunks, .iov_len = sizeof(chunks)};
    union ancillary room = {0};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = &room,
                             .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    ssize_t sent;

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(header), fds, count * sizeof(int));
    do {
        sent = sendmsg(control, &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0)
        return errno == EAGAIN ? KVARN_RETRY : KVARN_INTERNAL;
    return KVARN_OK;
}

/* Every descriptor that came is taken, so that none is left open unseen. */
static uint32_t take_fds(struct msghdr *message, int *fds)
{
    uint32_t count = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        uint32_t here = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds + count, CMSG_DATA(c), here * sizeof(int)); /* all of them fit by the room */
        count += here;
    }
    return count;
}

kvarn_status kvd_chunks_receive(int control, void *message, uint32_t bytes, uint32_t *got, int *fds,
                                uint32_t *fd_count)
{
    struct iovec iov = {.iov_base = message, .iov_len = bytes};
    union ancillary room;
    struct msghdr header = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &room, .msg_controllen = sizeof(room)};
    ssize_t count;

    *got = *fd_count = 0;
    do {
        count = recvmsg(control, &header, MSG_CMSG_CLOEXEC);
    } while (count < 0 && errno == EINTR);
    if (count < 0)
        return errno == EAGAIN ? KVARN_RETRY : KVARN_INTERNAL;
    *fd_count = take_fds(&header, fds);
    *got = (uint32_t)count;
    if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0)
        return KVARN_OK;
    while (*fd_count > 0)
        close(fds[--*fd_count]);
    return KVARN_INTERNAL;
}
