/* The file: a YAML map of the keys to scalars; `listen` and `pool` may be lists. Whatever else
 * stands there is an error with its line and column, for a misspelt key that is ignored costs more
 * than one that is refused. */
#include "server/core/config.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <yaml.h>

enum { FILE_BYTES_MAX = 1 << 20 };

struct reading {
    struct kvd_config *config;
    const char *path;
    yaml_document_t *document;
    char *why;
};

static kvarn_status wrong(const struct reading *it, yaml_mark_t at, const char *text,
                          const char *subject)
{
    snprintf(it->why, KVD_CONFIG_WHY_MAX, "%s:%zu:%zu: %s%s%s%.100s", it->path, at.line + 1,
             at.column + 1, text, *subject != '\0' ? " \"" : "", subject,
             *subject != '\0' ? "\"" : "");
    return KVARN_INVALID_SHAPE;
}

static const char *scalar(const yaml_node_t *node)
{
    const char *text = (const char *)node->data.scalar.value;

    return strlen(text) == node->data.scalar.length ? text : "(a NUL byte)";
}

static kvarn_status take_scalar(const struct reading *it, enum kvd_key key, const yaml_node_t *node)
{
    char place[KVD_CONFIG_TEXT_MAX];

    if (node->type != YAML_SCALAR_NODE)
        return wrong(it, node->start_mark, "a plain value is expected here", "");
    snprintf(place, sizeof place, "%.200s:%zu:%zu", it->path, node->start_mark.line + 1,
             node->start_mark.column + 1);
    return kvd_config_set(it->config, key, scalar(node), KVD_RANK_FILE, place, it->why);
}

static kvarn_status unknown_key(const struct reading *it, const yaml_node_t *name)
{
    char text[480];
    int used = snprintf(text, sizeof text, "unknown key \"%.100s\"; the keys are", scalar(name));

    for (unsigned key = 0; key < KVD_KEY_COUNT; key++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s %s", key == 0 ? "" : ",",
                         kvd_config_keys[key].name);
    return wrong(it, name->start_mark, text, "");
}

static kvarn_status take_pair(const struct reading *it, const yaml_node_t *name,
                              const yaml_node_t *value, bool seen[KVD_KEY_COUNT])
{
    kvarn_status status = KVARN_OK;
    enum kvd_key key;

    if (name->type != YAML_SCALAR_NODE)
        return wrong(it, name->start_mark, "a key is expected here", "");
    key = kvd_config_key(scalar(name));
    if (key == KVD_KEY_COUNT)
        return unknown_key(it, name);
    if (seen[key])
        return wrong(it, name->start_mark, "given twice:", scalar(name));
    seen[key] = true;
    if (!kvd_config_collects(key) || value->type != YAML_SEQUENCE_NODE)
        return take_scalar(it, key, value);
    for (yaml_node_item_t *item = value->data.sequence.items.start;
         item < value->data.sequence.items.top && status == KVARN_OK; item++)
        status = take_scalar(it, key, yaml_document_get_node(it->document, *item));
    return status;
}

static kvarn_status take_document(const struct reading *it)
{
    const yaml_node_t *root = yaml_document_get_root_node(it->document);
    bool seen[KVD_KEY_COUNT] = {false};
    kvarn_status status = KVARN_OK;

    if (root == NULL)
        return KVARN_OK; /* an empty file */
    if (root->type != YAML_MAPPING_NODE)
        return wrong(it, root->start_mark, "the file is a map of keys, as pool: host:16GiB", "");
    for (yaml_node_pair_t *pair = root->data.mapping.pairs.start;
         pair < root->data.mapping.pairs.top && status == KVARN_OK; pair++)
        status = take_pair(it, yaml_document_get_node(it->document, pair->key),
                           yaml_document_get_node(it->document, pair->value), seen);
    return status;
}

static kvarn_status parse(struct reading *it, FILE *file)
{
    yaml_parser_t parser;
    yaml_document_t document;
    kvarn_status status;

    if (!yaml_parser_initialize(&parser)) {
        snprintf(it->why, KVD_CONFIG_WHY_MAX, "%s: out of memory", it->path);
        return KVARN_INTERNAL;
    }
    yaml_parser_set_input_file(&parser, file);
    if (!yaml_parser_load(&parser, &document)) {
        status = wrong(it, parser.problem_mark,
                       parser.problem != NULL ? parser.problem : "not YAML", "");
    } else {
        it->document = &document;
        status = take_document(it);
        yaml_document_delete(&document);
        it->document = NULL;
    }
    yaml_parser_delete(&parser);
    return status;
}

kvarn_status kvd_config_read(struct kvd_config *config, const char *path,
                             char why[KVD_CONFIG_WHY_MAX])
{
    struct reading it = {.config = config, .path = path, .why = why};
    FILE *file = fopen(path, "re");
    struct stat is;
    kvarn_status status;

    if (file == NULL) {
        snprintf(why, KVD_CONFIG_WHY_MAX, "%s: %s", path, strerror(errno));
        return KVARN_INVALID_SHAPE;
    }
    if (fstat(fileno(file), &is) != 0 || !S_ISREG(is.st_mode) || is.st_size > FILE_BYTES_MAX) {
        snprintf(why, KVD_CONFIG_WHY_MAX, "%s: not a file of at most 1 MiB", path);
        fclose(file);
        return KVARN_INVALID_SHAPE;
    }
    status = parse(&it, file);
    fclose(file);
    return status;
}
