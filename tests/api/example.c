/* The smallest user of the library: names a block and connects nowhere. */
#include <stdio.h>
#include <string.h>

#include <kvarn/client.h>

int main(void)
{
    const uint32_t tokens[] = {1, 2, 3};
    kvarn_client *client = NULL;
    kvarn_key key;

    if (kvarn_block_key(&key, NULL, NULL, tokens, 3, NULL) != KVARN_OK)
        return 1;
    kvarn_status status = kvarn_connect(&client, "unix:/nonexistent/kvarnd.sock", NULL);
    printf("libkvarn-client %s: %s: %s\n", kvarn_version(), kvarn_status_name(status),
           kvarn_client_error(client));
    int as_expected = status == KVARN_PEER_LOST && strlen(kvarn_client_error(client)) > 0 &&
                      kvarn_preset_find("kvarn_k2v2_g128") != NULL;
    kvarn_close(&client);
    return as_expected ? 0 : 1;
}
