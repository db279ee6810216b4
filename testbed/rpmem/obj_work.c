/* The workload: transactions, atomic allocations and lists on one root object, and the invariants that hold between them. */
#include <errno.h>
#include <libpmemobj.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "obj.h"

#define LAYOUT "pmof-rpmem-work"

enum { ACCOUNTS = 64, SLOTS = 32, BLOCK = 512, WIDE = 16 << 10, LIST_MAX = 40, ATOM = 500 };

/* Of objects that verify finds, by the number of their type. */
static const char *const TYPE_NAMES[] = {"object", "blob", "entry", "zeroes", "loose"};

/* Types, with the one that no object of ours has; objects of the last are those that nothing leads to. */
enum { TYPES = 5 };

/* What all accounts hold together. */
static const uint64_t TOTAL = ACCOUNTS * 1000;

TOID_DECLARE(struct blob, 1);
TOID_DECLARE(struct entry, 2);
TOID_DECLARE(struct zeroes, 3);
TOID_DECLARE(struct loose, 4);

struct blob {
    uint64_t seed;
    uint64_t bytes;
    unsigned char data[];
};

struct entry {
    uint64_t number;
    uint64_t complement; /* ~number */
    POBJ_LIST_ENTRY(struct entry) link;
};

POBJ_LIST_HEAD(entries, struct entry);

struct root {
    uint64_t committed; /* transactions; the first word, which committed_in reads */
    uint64_t block_number;
    unsigned char block[BLOCK]; /* each byte is that of block_number */
    uint64_t accounts[ACCOUNTS];
    TOID(struct blob) slots[SLOTS]; /* by transactions */
    PMEMoid atoms[SLOTS];           /* by atomic allocations: blobs in even places, zeroes in odd ones */
    struct entries lists[2];
    uint64_t wide_number;
    unsigned char wide[WIDE]; /* each byte is that of wide_number */
    unsigned char never[64];  /* written by transactions that are aborted only */
};

/* Before which replica's persist a process that allocates is killed. */
struct loose_kill {
    struct between *between;
    unsigned replica;
};

struct random {
    uint64_t state;
};

static uint64_t next(struct random *random) {
    random->state ^= random->state << 13;
    random->state ^= random->state >> 7;
    random->state ^= random->state << 17;
    return random->state * 0x2545f4914f6cdd1dULL >> 11;
}

static int complain(const char *what) {
    int status = errno == EAGAIN ? BUSY : 1;
    printf("# %s: %s\n", what, pmemobj_errormsg());
    return status;
}

static unsigned char blob_byte(uint64_t seed, uint64_t at) {
    return (unsigned char)(seed * 31 + at * 7 + (at >> 8));
}

static void fill_blob(struct blob *blob, uint64_t seed, uint64_t bytes) {
    blob->seed = seed;
    blob->bytes = bytes;
    for (uint64_t at = 0; at < bytes; at++)
        blob->data[at] = blob_byte(seed, at);
}

static bool is_blob(const struct blob *blob, size_t usable) {
    if (blob->bytes > usable - sizeof *blob)
        return false;
    for (uint64_t at = 0; at < blob->bytes; at++)
        if (blob->data[at] != blob_byte(blob->seed, at))
            return false;
    return true;
}

int create_pool(const char *set) {
    PMEMobjpool *pool = pmemobj_create(set, LAYOUT, 0, 0600);
    if (pool == NULL)
        return complain("pmemobj_create");
    PMEMoid oid = pmemobj_root(pool, sizeof(struct root));
    if (OID_IS_NULL(oid))
        return complain("pmemobj_root");
    struct root *root = pmemobj_direct(oid);
    for (unsigned account = 0; account < ACCOUNTS; account++)
        root->accounts[account] = TOTAL / ACCOUNTS;
    pmemobj_persist(pool, root->accounts, sizeof root->accounts);
    pmemobj_close(pool);
    return 0;
}

struct work {
    PMEMobjpool *pool;
    PMEMoid oid;
    struct root *root;
    struct random random;
    struct ledger *ledger;
};

static void add(const struct work *work, const void *field, size_t bytes) {
    pmemobj_tx_add_range(work->oid, (uintptr_t)field - (uintptr_t)work->root, bytes);
}

/* A transaction that does `change`, and counts itself. Returns whether it was committed. */
static bool transact(struct work *work, void (*change)(struct work *)) {
    volatile bool committed = false;
    work->ledger->begun++;
    TX_BEGIN(work->pool) {
        change(work);
        add(work, &work->root->committed, sizeof work->root->committed);
        work->root->committed++;
    }
    TX_ONCOMMIT {
        committed = true;
    }
    TX_END
    if (committed)
        work->ledger->committed++;
    return committed;
}

static void write_block(struct work *work) {
    struct root *root = work->root;
    add(work, root->block, sizeof root->block);
    add(work, &root->block_number, sizeof root->block_number);
    root->block_number = next(&work->random);
    memset(root->block, (int)(root->block_number & 0xff), sizeof root->block);
}

static void transfer(struct work *work) {
    uint64_t *from = &work->root->accounts[next(&work->random) % ACCOUNTS];
    uint64_t *to = &work->root->accounts[next(&work->random) % ACCOUNTS];
    add(work, from, sizeof *from);
    add(work, to, sizeof *to);
    uint64_t amount = *from / 3;
    *from -= amount;
    *to += amount;
}

/* Longer than a lane's log, which is then extended by an allocation. */
static void write_wide(struct work *work) {
    struct root *root = work->root;
    add(work, &root->wide_number, sizeof root->wide_number + sizeof root->wide);
    root->wide_number = next(&work->random);
    memset(root->wide, (int)(root->wide_number & 0xff), sizeof root->wide);
}

static void replace_slot(struct work *work) {
    TOID(struct blob) *slot = &work->root->slots[next(&work->random) % SLOTS];
    /* Few sizes: each takes a chunk of the heap. The largest is longer than a chunk. */
    static const uint64_t sizes[] = {100, 100, 700, 700, 3000, 3000, 60000, 300000};
    uint64_t bytes = sizes[next(&work->random) % (sizeof sizes / sizeof *sizes)];
    add(work, slot, sizeof *slot);
    TX_FREE(*slot);
    *slot = TOID_NULL(struct blob);
    if (next(&work->random) % 4 == 0)
        return;
    *slot = TX_ALLOC(struct blob, sizeof(struct blob) + bytes);
    fill_blob(D_RW(*slot), next(&work->random), bytes);
}

static void write_never(struct work *work) {
    struct root *root = work->root;
    add(work, root->never, sizeof root->never);
    memset(root->never, 0xff, sizeof root->never);
    pmemobj_tx_alloc(1000, TOID_TYPE_NUM(struct blob));
    write_block(work);
    pmemobj_tx_abort(ECANCELED);
}

static int construct_blob(PMEMobjpool *pool, void *at, void *seed) {
    fill_blob(at, *(uint64_t *)seed, ATOM);
    pmemobj_persist(pool, at, sizeof(struct blob) + ATOM);
    return 0;
}

static bool change_atom(struct work *work) {
    uint64_t index = next(&work->random) % SLOTS;
    PMEMoid *atom = &work->root->atoms[index];
    if (!OID_IS_NULL(*atom)) {
        pmemobj_free(atom);
        return true;
    }
    if (index % 2 == 1)
        return pmemobj_zalloc(work->pool, atom, ATOM, TOID_TYPE_NUM(struct zeroes)) == 0;
    uint64_t seed = next(&work->random);
    return pmemobj_alloc(work->pool, atom, sizeof(struct blob) + ATOM, TOID_TYPE_NUM(struct blob), construct_blob, &seed) == 0;
}

static int construct_entry(PMEMobjpool *pool, void *at, void *number) {
    struct entry *entry = at;
    entry->number = *(uint64_t *)number;
    entry->complement = ~entry->number;
    pmemobj_persist(pool, entry, sizeof entry->number + sizeof entry->complement);
    return 0;
}

static unsigned length_of(struct entries *list) {
    unsigned length = 0;
    TOID(struct entry) entry;
    POBJ_LIST_FOREACH(entry, list, link) {
        length++;
    }
    return length;
}

static bool change_lists(struct work *work) {
    struct entries *list = &work->root->lists[next(&work->random) % 2];
    struct entries *other = &work->root->lists[list == &work->root->lists[0]];
    TOID(struct entry) first = POBJ_LIST_FIRST(list);
    uint64_t number = next(&work->random);
    unsigned length = length_of(list);
    switch (length == 0 ? 0 : length > LIST_MAX ? 3 : next(&work->random) % 5) {
    case 0:
        return !OID_IS_NULL(POBJ_LIST_INSERT_NEW_HEAD(work->pool, list, link, sizeof(struct entry), construct_entry, &number));
    case 1:
        return !OID_IS_NULL(POBJ_LIST_INSERT_NEW_TAIL(work->pool, list, link, sizeof(struct entry), construct_entry, &number));
    case 2: return POBJ_LIST_MOVE_ELEMENT_TAIL(work->pool, list, other, first, link, link) == 0;
    case 3: return POBJ_LIST_REMOVE_FREE(work->pool, list, first, link) == 0;
    default:
        return !OID_IS_NULL(
            POBJ_LIST_INSERT_NEW_AFTER(work->pool, list, first, link, sizeof(struct entry), construct_entry, &number));
    }
}

static bool step(struct work *work) {
    switch (next(&work->random) % 10) {
    case 0:
    case 1: return transact(work, write_block);
    case 2: return transact(work, transfer);
    case 3: return transact(work, write_wide);
    case 4:
    case 5: return transact(work, replace_slot);
    case 6: return !transact(work, write_never);
    case 7: return change_atom(work);
    default: return change_lists(work);
    }
}

int work(const char *set, uint64_t seed, uint64_t steps, struct ledger *ledger) {
    PMEMobjpool *pool = pmemobj_open(set, LAYOUT);
    if (pool == NULL)
        return complain("pmemobj_open");
    struct work work = {.pool = pool, .oid = pmemobj_root(pool, sizeof(struct root)), .ledger = ledger};
    work.root = pmemobj_direct(work.oid);
    work.random.state = seed * 0x9e3779b97f4a7c15ULL + 1;
    ledger->begun = ledger->committed = work.root->committed;
    for (uint64_t done = 0; steps == 0 || done < steps; done++)
        if (!step(&work))
            return complain("a step of the work");
    pmemobj_close(pool);
    return 0;
}

/* The last persists before the object counts: what is persisted next is the bitmap of its run. */
static int construct_loose(PMEMobjpool *pool, void *at, void *argument) {
    const struct loose_kill *kill = argument;
    memset(at, 0x5a, ATOM);
    pmemobj_persist(pool, at, ATOM);
    kill->between->kill_at = kill->between->persists + kill->replica;
    return 0;
}

int allocate_loose(const char *set, unsigned replica, struct between *between) {
    PMEMobjpool *pool = pmemobj_open(set, LAYOUT);
    if (pool == NULL)
        return complain("pmemobj_open");
    PMEMoid oid;
    struct loose_kill kill = {between, replica};
    if (pmemobj_alloc(pool, &oid, ATOM, TOID_TYPE_NUM(struct loose), construct_loose, &kill) != 0)
        return complain("pmemobj_alloc");
    pmemobj_close(pool);
    return 0;
}

static int broken(const char *what) {
    printf("# the pool is not as it must be: %s\n", what);
    return 1;
}

static bool all_are(const unsigned char *bytes, size_t count, unsigned char value) {
    for (size_t at = 0; at < count; at++)
        if (bytes[at] != value)
            return false;
    return true;
}

/* Both directions, and what entries hold; counts them. */
static bool is_list(struct entries *list, size_t *count) {
    TOID(struct entry) entry;
    size_t forward = 0, backward = 0;
    POBJ_LIST_FOREACH(entry, list, link) {
        if (D_RO(entry)->complement != ~D_RO(entry)->number)
            return false;
        forward++;
    }
    POBJ_LIST_FOREACH_REVERSE(entry, list, link) {
        backward++;
    }
    *count += forward;
    return forward == backward;
}

static int verify_root(PMEMobjpool *pool, struct root *root) {
    uint64_t sum = 0;
    for (unsigned account = 0; account < ACCOUNTS; account++)
        sum += root->accounts[account];
    if (sum != TOTAL)
        return broken("the sum of all accounts");
    if (!all_are(root->block, sizeof root->block, (unsigned char)root->block_number))
        return broken("the block and its number");
    if (!all_are(root->wide, sizeof root->wide, (unsigned char)root->wide_number))
        return broken("the wide block and its number");
    if (!all_are(root->never, sizeof root->never, 0))
        return broken("a transaction that was aborted left something");
    size_t blobs = 0, zeroes = 0, entries = 0;
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        PMEMoid oids[] = {root->slots[slot].oid, root->atoms[slot]};
        for (unsigned way = 0; way < 2; way++) {
            if (OID_IS_NULL(oids[way]))
                continue;
            const void *object = pmemobj_direct(oids[way]);
            size_t usable = pmemobj_alloc_usable_size(oids[way]);
            bool is_zeroes = way == 1 && slot % 2 == 1;
            if (is_zeroes ? !all_are(object, usable, 0) : !is_blob(object, usable))
                return broken(is_zeroes ? "zeroes" : "the bytes of a blob");
            blobs += !is_zeroes;
            zeroes += is_zeroes;
        }
    }
    if (!is_list(&root->lists[0], &entries) || !is_list(&root->lists[1], &entries))
        return broken("a list");
    PMEMoid oid;
    size_t found[TYPES] = {0};
    POBJ_FOREACH(pool, oid) {
        found[pmemobj_type_num(oid) % TYPES]++;
    }
    if (found[1] != blobs || found[2] != entries || found[3] != zeroes || found[0] != 0)
        return broken("objects that nothing leads to, or too few of them");
    return 0;
}

/* Of an object, without what its block has beyond. */
static size_t used_bytes(PMEMoid oid) {
    const struct blob *blob = pmemobj_direct(oid);
    switch (pmemobj_type_num(oid)) {
    case 1: return sizeof *blob + blob->bytes;
    case 2: return sizeof(struct entry);
    case 4: return ATOM;
    default: return pmemobj_alloc_usable_size(oid);
    }
}

/* The root object but for the locks of its lists, which are good while the library runs only. */
static void list_root(FILE *file, uint64_t root) {
#define FIELD(name) {#name, offsetof(struct root, name), sizeof((struct root *)NULL)->name}
    static const struct {
        const char *name;
        size_t offset, bytes;
    } fields[] = {
        FIELD(committed),
        FIELD(block_number),
        FIELD(block),
        FIELD(accounts),
        FIELD(slots),
        FIELD(atoms),
        FIELD(lists[0].pe_first),
        FIELD(lists[1].pe_first),
        FIELD(wide_number),
        FIELD(wide),
        FIELD(never),
    };
#undef FIELD
    for (unsigned field = 0; field < sizeof fields / sizeof *fields; field++)
        fprintf(file, "%llu %zu root.%s\n", (unsigned long long)(root + fields[field].offset), fields[field].bytes,
                fields[field].name);
}

int verify(const char *set, const char *live) {
    PMEMobjpool *pool = pmemobj_open(set, LAYOUT);
    if (pool == NULL)
        return complain("pmemobj_open");
    PMEMoid oid = pmemobj_root(pool, sizeof(struct root));
    if (OID_IS_NULL(oid))
        return complain("pmemobj_root");
    int failed = verify_root(pool, pmemobj_direct(oid));
    FILE *file = fopen(live, "w");
    if (file == NULL)
        return broken("the list of objects cannot be written");
    list_root(file, oid.off);
    POBJ_FOREACH(pool, oid) {
        fprintf(file, "%llu %zu %s\n", (unsigned long long)oid.off, used_bytes(oid), TYPE_NAMES[pmemobj_type_num(oid) % TYPES]);
    }
    failed |= fclose(file) != 0;
    pmemobj_close(pool);
    return failed;
}
