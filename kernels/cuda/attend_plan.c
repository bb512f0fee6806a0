/* One walk over (sequence, kv head, rows, spans) cuts pieces and counts them; the second, same walk
 * writes them down, when it is known how many blocks there are. */
#include "kernels/cuda/attend_plan.h"

#include <stdio.h>
#include <string.h>

#include "kernels/cuda/attend_config.h"

enum {
    STRETCH = KVK_ATTEND_SPAN_ROWS,
    CUT_ROUNDS = 2, /* deterministic: tiles of a piece that each warp takes, about */
    CUT_PARTS = 64, /* and at most so many pieces of a run of tiles */
    RUNS = 8,       /* ends of runs remembered from head to head */
};

struct run {
    uint32_t begin, end;
};

struct walk {
    const struct kvk_attend_batch *batch;
    const struct kvk_cuda_span *spans; /* of the sequence being walked */
    struct kvk_cuda_piece *pieces;     /* NULL: count only */
    struct kvk_attend_plan plan;
    uint64_t tile_cost, row_cost; /* bytes */
    uint64_t total, at; /* of all pieces; of those walked so far. total 0: not known yet */
    uint32_t shares;    /* blocks that total is divided among */
    uint64_t share;     /* number of the block whose share of total this is, or beyond */
    uint32_t warps, nt;
    uint32_t first, last;                   /* spans that any row of the sequence sees */
    uint32_t blocks, units, tail;           /* begun; in the current one; its last piece */
    uint32_t parts, rows_piece, rows_block; /* of the current rows; where their first piece is */
    uint32_t part_count, groups;            /* partial results; groups of rows */
    uint64_t row_least, row_most;           /* cost of the rows */
    struct run runs[RUNS];
    bool masks; /* some tile of the sequence is partly hidden */
};

uint32_t kvk_attend_rows(uint32_t rows)
{
    return rows <= 4 ? 4 : 8;
}

static void choose_kernel(struct walk *walk, uint32_t rows)
{
    const struct kvk_shape *s = &walk->batch->shape;
    int d = s->dim, g = s->group, kb = s->bits_k, vb = s->bits_v;
    int nt = (int)kvk_attend_rows(rows) / 4;

    walk->nt = (uint32_t)nt;
    walk->warps = (uint32_t)KVK_ATTEND_WARPS(d, g, kb, vb, nt);
    walk->plan.threads = 32 * walk->warps;
    walk->plan.shared_bytes = (uint32_t)KVK_ATTEND_SHARED(d, g, kb, vb, nt);
    walk->tile_cost = (uint64_t)(KVK_ATTEND_K_BYTES(d, g, kb) + KVK_ATTEND_V_BYTES(d, g, vb));
    walk->row_cost = 4 * (uint64_t)d;
    snprintf(walk->plan.image, sizeof(walk->plan.image), "attend_d%d", d);
    snprintf(walk->plan.kernel, sizeof(walk->plan.kernel), "kvk_cuda_attend_%d_%d_k%dv%d_n%d", d, g,
             kb, vb, nt);
}

/* Positions that some row sees, [*from, *to), and those that every row sees, [*all_from, *all_to).
 */
static void seen(const struct kvk_cuda_sequence *s, uint64_t *from, uint64_t *to,
                 uint64_t *all_from, uint64_t *all_to)
{
    uint64_t limit = s->limit, last = limit + (s->full ? 0 : s->q_tokens - 1);

    *to = last;
    *all_to = limit;
    *from = s->window > 0 && limit > s->window ? limit - s->window : 0;
    *all_from = s->window > 0 && last > s->window ? last - s->window : 0;
}

static bool partly_hidden(const struct walk *walk, const struct kvk_cuda_sequence *s,
                          const struct kvk_cuda_span *span)
{
    uint64_t from, to, all_from, all_to;

    seen(s, &from, &to, &all_from, &all_to);
    return span->tokens < walk->batch->shape.group || span->position < all_from ||
           (uint64_t)span->position + span->tokens > all_to;
}

static void open_sequence(struct walk *walk, const struct kvk_cuda_sequence *s)
{
    uint64_t from, to, all_from, all_to;
    uint32_t first = 0, last = s->span_count;

    seen(s, &from, &to, &all_from, &all_to);
    while (first < last &&
           (uint64_t)walk->spans[first].position + walk->spans[first].tokens <= from)
        first++;
    while (last > first &&
           (walk->spans[last - 1].position >= to || walk->spans[last - 1].tokens == 0))
        last--;
    walk->first = first;
    walk->last = last;
    walk->masks = false;
    for (uint32_t i = first; i < last && !walk->masks; i++)
        walk->masks =
            walk->spans[i].kind == KVARN_BLOCK_TILE && partly_hidden(walk, s, &walk->spans[i]);
    memset(walk->runs, 0xff, sizeof(walk->runs)); /* begin at no span */
}

/* End of the run of tiles that begins at span `begin`; the same for every head. */
static uint32_t run_end(struct walk *walk, uint32_t begin)
{
    struct run *run = &walk->runs[begin % RUNS];

    if (run->begin != begin) {
        uint32_t end = begin;
        while (end < walk->last && walk->spans[end].kind == KVARN_BLOCK_TILE)
            end++;
        *run = (struct run){begin, end};
    }
    return run->end;
}

/* End of the exact spans with tokens that begin at span `begin`: as many as a piece can number. */
static uint32_t exact_end(const struct walk *walk, uint32_t begin)
{
    uint32_t end = begin;

    while (end < walk->last && end - begin < UINT8_MAX &&
           walk->spans[end].kind == KVARN_BLOCK_EXACT && walk->spans[end].tokens > 0)
        end++;
    return end;
}

/* The block whose share of the work `cost` bytes from here are, by their middle. */
static uint64_t share_of(const struct walk *walk, uint64_t cost)
{
    return walk->total == 0 ? 0 : (walk->at + cost / 2) * walk->shares / walk->total;
}

/* A place for one more piece in the block of that share; its predecessor there leads to it. */
static uint32_t place_piece(struct walk *walk, uint64_t share)
{
    uint32_t index;

    if (walk->blocks == 0 || share != walk->share) {
        index = walk->blocks++;
        walk->units = 0;
    } else {
        index = walk->plan.blocks + (walk->plan.pieces - walk->blocks);
        if (walk->pieces != NULL)
            walk->pieces[walk->tail].next = index;
    }
    walk->share = share;
    walk->tail = index;
    walk->plan.pieces++;
    return index;
}

static uint64_t exact_cost(const struct walk *walk, uint32_t begin, uint32_t end)
{
    uint64_t tokens = 0;

    for (uint32_t i = begin; i < end; i++)
        tokens += walk->spans[i].tokens;
    return tokens * walk->row_cost;
}

static void add_piece(struct walk *walk, uint64_t share, struct kvk_cuda_piece piece, uint64_t cost)
{
    uint32_t index = place_piece(walk, share), exact = piece.lead + (uint32_t)piece.trail;
    uint32_t tiles = piece.span_end - piece.span_begin - exact;

    if (walk->parts == 0) {
        walk->rows_piece = index;
        walk->rows_block = walk->blocks - 1;
    }
    piece.part = walk->parts++;
    piece.units = exact * (walk->batch->shape.group / STRETCH) + tiles;
    piece.turn = (uint16_t)(walk->batch->deterministic ? 0 : walk->units % walk->warps);
    walk->units += piece.units;
    walk->at += cost;
    if (walk->pieces == NULL)
        return;
    for (uint32_t i = 0; walk->masks && i < tiles; i++)
        piece.masked |=
            partly_hidden(walk, &piece.of, &walk->spans[piece.span_begin + piece.lead + i]);
    walk->pieces[index] = piece;
}

/* Bytes from here on that belong to the block of that share. */
static uint64_t left_of(const struct walk *walk, uint64_t share)
{
    uint64_t border;

    if (walk->total == 0 || walk->batch->deterministic)
        return UINT64_MAX;
    border = ((share + 1) * walk->total + walk->shares - 1) / walk->shares;
    return border > walk->at ? border - walk->at : 0;
}

/* How many of `tiles` tiles, of which the first begins `from` bytes from here, have their middle
 * within `left` bytes. */
static uint32_t fitting(const struct walk *walk, uint32_t tiles, uint64_t from, uint64_t left)
{
    uint64_t cost = walk->tile_cost, need = from + cost / 2, count;

    count = left > need ? (left - need + cost - 1) / cost : 0;
    return count < tiles ? (uint32_t)count : tiles;
}

/* deterministic: tiles of a piece, by the length of the run alone. */
static uint32_t even_cut(const struct walk *walk, uint32_t tiles)
{
    uint32_t round = CUT_ROUNDS * walk->warps, parts = (tiles + round - 1) / round;

    parts = parts > CUT_PARTS ? CUT_PARTS : parts;
    return parts > 0 ? (tiles + parts - 1) / parts : 0;
}

/* Spans [begin, tiles) are exact, [tiles, trail) tiles, [trail, end) exact: one piece, or as many
 * as there are borders of shares in it. */
static void walk_stretch(struct walk *walk, struct kvk_cuda_piece piece, uint32_t begin,
                         uint32_t tiles, uint32_t trail, uint32_t end)
{
    uint32_t most = even_cut(walk, trail - tiles);

    while (begin < end) {
        uint64_t lead = exact_cost(walk, begin, tiles), last = exact_cost(walk, trail, end);
        uint64_t share = share_of(walk, begin < tiles   ? lead
                                        : tiles < trail ? walk->tile_cost
                                                        : last);
        uint64_t left = left_of(walk, share);
        uint32_t fit = walk->batch->deterministic ? most : fitting(walk, trail - tiles, lead, left);
        fit = fit < trail - tiles ? fit : trail - tiles;
        if (begin == tiles && tiles < trail && fit == 0)
            fit = 1;
        uint64_t cost = lead + fit * walk->tile_cost;
        piece.lead = (uint8_t)(tiles - begin);
        piece.trail = 0;
        piece.span_begin = begin;
        begin = tiles = tiles + fit;
        if (begin == trail && (cost == 0 || cost + last / 2 < left)) {
            piece.trail = (uint8_t)(end - trail);
            cost += last;
            begin = end;
        }
        piece.span_end = begin;
        if (walk->batch->deterministic)
            share = share_of(walk, cost);
        add_piece(walk, share, piece, cost);
    }
}

/* The pieces of these rows learn how many they are. Those of one block lead to each other, and a
 * block begins at the piece of its number. */
static void close_rows(struct walk *walk)
{
    uint32_t at = walk->rows_piece, block = walk->rows_block;

    for (uint32_t part = 0; walk->pieces != NULL && part < walk->parts; part++) {
        struct kvk_cuda_piece *piece = &walk->pieces[at];
        piece->parts = walk->parts;
        piece->join = walk->plan.joins;
        piece->part_first = walk->part_count;
        at = piece->next != 0 ? piece->next : ++block;
    }
    if (walk->parts > 1) {
        walk->plan.joins++;
        walk->part_count += walk->parts;
    }
    walk->parts = 0;
}

static void walk_rows(struct walk *walk, struct kvk_cuda_piece piece)
{
    uint64_t before = walk->at;

    for (uint32_t i = walk->first; i < walk->last;) {
        uint32_t tiles = exact_end(walk, i), trail = run_end(walk, tiles);
        uint32_t end = exact_end(walk, trail);
        end = end == walk->last ? end : trail; /* or they lead the tiles after them */
        if (end == i)
            end = i + 1; /* a span without tokens */
        else
            walk_stretch(walk, piece, i, tiles, trail, end);
        i = end;
    }
    if (walk->parts == 0) { /* rows that see nothing are written too */
        piece.span_begin = piece.span_end = walk->first;
        add_piece(walk, share_of(walk, 0), piece, 0);
    }
    close_rows(walk);
    uint64_t cost = walk->at - before;
    walk->row_least = walk->groups == 0 || cost < walk->row_least ? cost : walk->row_least;
    walk->row_most = cost > walk->row_most ? cost : walk->row_most;
    walk->groups++;
}

static void walk_batch(struct walk *walk)
{
    const struct kvk_attend_batch *batch = walk->batch;
    uint32_t heads = batch->q_heads / batch->kv_heads;

    walk->at = walk->row_most = 0;
    walk->part_count = walk->groups = walk->blocks = walk->plan.pieces = walk->plan.joins = 0;
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct kvk_cuda_sequence *s = &batch->sequences[i];
        walk->spans = batch->spans[i];
        open_sequence(walk, s);
        for (uint32_t head = 0; head < batch->kv_heads; head++) {
            for (uint32_t row = 0; row < s->q_tokens * heads; row += 4 * walk->nt) {
                struct kvk_cuda_piece piece = {
                    .of = *s, .sequence = i, .kv_head = (uint16_t)head, .row_begin = (uint16_t)row};
                walk_rows(walk, piece);
            }
        }
    }
    walk->total = walk->at;
    walk->plan.blocks = walk->blocks;
}

/* Into how many shares the work is cut. Memory is as fast with a few processors idle, and pieces
 * that end where rows end need no joining or less of it: so rows of one size get a whole number of
 * blocks each, or blocks a whole number of rows, if nine processors in ten find work that way. */
static uint32_t choose_shares(const struct walk *walk)
{
    uint32_t most = walk->batch->processors;

    if (walk->groups == 0)
        return most;
    for (uint32_t shares = most; walk->row_least == walk->row_most && 10 * shares >= 9 * most;
         shares--) {
        if (walk->groups % shares == 0 || shares % walk->groups == 0)
            return shares;
    }
    return most;
}

/* Spans of a known kind, tiles no longer than a group; rows that a piece can number. */
static bool fits(const struct kvk_attend_batch *batch)
{
    const char *why;

    if (kvk_shape_check(&batch->shape, &why) != KVARN_OK || batch->kv_heads == 0 ||
        batch->q_heads % batch->kv_heads != 0 || batch->q_heads == 0 ||
        batch->q_heads / batch->kv_heads > KVARN_MAX_GQA || batch->processors == 0)
        return false;
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct kvk_cuda_sequence *s = &batch->sequences[i];
        if ((uint64_t)s->q_tokens * (batch->q_heads / batch->kv_heads) > UINT16_MAX)
            return false;
        for (uint32_t k = 0; k < s->span_count; k++) {
            const struct kvk_cuda_span *span = &batch->spans[i][k];
            if ((span->kind != KVARN_BLOCK_TILE && span->kind != KVARN_BLOCK_EXACT) ||
                span->tokens > batch->shape.group)
                return false;
        }
    }
    return true;
}

kvarn_status kvk_attend_plan(const struct kvk_attend_batch *batch, struct kvk_attend_plan *plan,
                             struct kvk_cuda_piece *pieces)
{
    struct walk walk = {.batch = batch};
    uint32_t rows = 0;

    if (!fits(batch))
        return KVARN_INVALID_SHAPE;
    for (uint32_t i = 0; i < batch->count; i++) {
        uint32_t more = batch->sequences[i].q_tokens * (batch->q_heads / batch->kv_heads);
        rows = more > rows ? more : rows;
    }
    choose_kernel(&walk, rows);
    walk_batch(&walk); /* the work in all */
    walk.shares = choose_shares(&walk);
    walk_batch(&walk); /* how many blocks it makes */
    if (pieces != NULL) {
        walk.pieces = pieces;
        walk_batch(&walk);
    }
    walk.plan.part_bytes =
        (size_t)walk.part_count * KVK_ATTEND_PART_BYTES((size_t)batch->shape.dim, (size_t)walk.nt);
    *plan = walk.plan;
    return KVARN_OK;
}
