/* Text and class of each status. */
#include <kvarn/status.h>

const char *kvarn_status_name(kvarn_status status)
{
    switch (status) {
#define NAME_CASE(name, number, text)                                                              \
    case KVARN_##name:                                                                             \
        return #name;
        KVARN_STATUS_LIST(NAME_CASE)
#undef NAME_CASE
    default:
        return "UNKNOWN";
    }
}

const char *kvarn_status_text(kvarn_status status)
{
    switch (status) {
#define TEXT_CASE(name, number, text)                                                              \
    case KVARN_##name:                                                                             \
        return text;
        KVARN_STATUS_LIST(TEXT_CASE)
#undef TEXT_CASE
    default:
        return "a status that this version does not know";
    }
}

int kvarn_status_known(kvarn_status status)
{
    switch (status) {
#define KNOWN_CASE(name, number, text) case KVARN_##name:
        KVARN_STATUS_LIST(KNOWN_CASE)
#undef KNOWN_CASE
        return 1;
    default:
        return 0;
    }
}

kvarn_status_class kvarn_status_class_of(kvarn_status status)
{
    unsigned number = (unsigned)status;

    if (number < 16)
        return KVARN_CLASS_SUCCESS;
    if (number < 32)
        return KVARN_CLASS_FIX;
    if (number < 48)
        return KVARN_CLASS_RETRY;
    if (number < 64)
        return KVARN_CLASS_LOST;
    return KVARN_CLASS_FATAL;
}
