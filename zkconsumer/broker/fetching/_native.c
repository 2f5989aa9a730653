/* Record batches of format 2 to Arrow's buffers, without the interpreter lock.
 *
 * One function, without state. It accepts nothing that records.py refuses: for anything unusual it
 * returns None, and the decoder in Python reads the bytes again and words the error. Lengths are
 * zigzag numbers that stay as they are: an odd one is negative, which means null.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#define CRC_TARGET __attribute__((target("sse4.2")))
#define CRC_8(crc, word) _mm_crc32_u64(crc, word)
#define CRC_1(crc, byte) _mm_crc32_u8((uint32_t)(crc), byte)
#define HAS_CRC() __builtin_cpu_supports("sse4.2")
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define CRC_TARGET
#define CRC_8(crc, word) __crc32cd((uint32_t)(crc), word)
#define CRC_1(crc, byte) __crc32cb((uint32_t)(crc), byte)
#define HAS_CRC() 1
#endif

enum { OFFSET = 1, TIMESTAMP = 2, KEY = 4, VALUE = 8, HEADERS = 16 };
enum { BLOCK = 1024, SMALLEST_RECORD = 7, SMALLEST_BATCH = 49, V2_HEAD = 61 };

/* -- checksums ------------------------------------------------------------------------------- */

static uint32_t tables[8][256]; /* of eight bytes at a time */
static uint32_t zeros[4][256];  /* a register with one byte, after BLOCK zeros */
static int has_crc;

static uint32_t crc_in_tables(uint32_t crc, const uint8_t *p, Py_ssize_t n) {
    for (; n >= 8; p += 8, n -= 8) {
        uint32_t low = crc ^ (p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24);
        crc = tables[7][low & 255] ^ tables[6][low >> 8 & 255] ^ tables[5][low >> 16 & 255] ^
              tables[4][low >> 24] ^ tables[3][p[4]] ^ tables[2][p[5]] ^ tables[1][p[6]] ^
              tables[0][p[7]];
    }
    for (; n > 0; p++, n--) crc = crc >> 8 ^ tables[0][(crc ^ *p) & 255];
    return crc;
}

#ifdef CRC_TARGET
#define AFTER_ZEROS(crc) \
    (zeros[0][crc & 255] ^ zeros[1][crc >> 8 & 255] ^ zeros[2][crc >> 16 & 255] ^ zeros[3][crc >> 24])

CRC_TARGET static uint32_t crc_in_hardware(uint32_t crc, const uint8_t *p, Py_ssize_t n) {
    uint64_t a = crc, b, c, x, y, z;
    /* The processor works on three at once. */
    for (; n >= 3 * BLOCK; p += 3 * BLOCK, n -= 3 * BLOCK) {
        b = c = 0;
        for (int i = 0; i < BLOCK; i += 8) {
            memcpy(&x, p + i, 8), memcpy(&y, p + BLOCK + i, 8), memcpy(&z, p + 2 * BLOCK + i, 8);
            a = CRC_8(a, x), b = CRC_8(b, y), c = CRC_8(c, z);
        }
        b ^= AFTER_ZEROS(a);
        a = c ^ AFTER_ZEROS(b);
    }
    for (; n >= 8; p += 8, n -= 8) memcpy(&x, p, 8), a = CRC_8(a, x);
    for (; n > 0; p++, n--) a = CRC_1(a, *p);
    return (uint32_t)a;
}
#endif

static uint32_t crc32c(const uint8_t *p, Py_ssize_t n) {
#ifdef CRC_TARGET
    if (has_crc) return ~crc_in_hardware(0xffffffff, p, n);
#endif
    return ~crc_in_tables(0xffffffff, p, n);
}

static void prepare_checksums(void) { /* once: a second time, the tables would change */
    if (tables[0][1]) return;
    static const uint8_t block[BLOCK];
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
        tables[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int byte = 0; byte < 256; byte++)
            tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 255];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = crc_in_tables((uint32_t)1 << bit, block, BLOCK);
        for (int byte = 0; byte < 256; byte++)
            if (byte >> (bit & 7) & 1) zeros[bit >> 3][byte] ^= crc;
    }
#ifdef HAS_CRC
    has_crc = HAS_CRC();
#endif
}

/* -- batches --------------------------------------------------------------------------------- */

typedef struct {
    int64_t base, first, fixed; /* offset that is added, first time, time of all records */
    int is_fixed, codec;
    int64_t count;
    const uint8_t *pos, *stop;
} Batch;

typedef struct {
    const uint8_t *name, *value; /* value is NULL for null */
    int32_t name_size, value_size;
} Header;

typedef struct {
    Batch *batches;
    Py_ssize_t number, room;
    Header *headers;
    int64_t header_number, header_room;
    int64_t rows;
} Found;

static uint64_t big(const uint8_t *p, int n) {
    uint64_t value = 0;
    for (int i = 0; i < n; i++) value = value << 8 | p[i];
    return value;
}

/* Collect the batches whose checksum is right. Returns 0 for anything else but a cut-off end. */
static int find_batches(Found *found, const uint8_t *data, Py_ssize_t size) {
    const uint8_t *p = data, *end = data + size;
    while (end - p >= 17) {
        int32_t length = (int32_t)big(p + 8, 4);
        if (p[16] != 2 || length < SMALLEST_BATCH) return 0;
        if (length > end - p - 12) break;
        const uint8_t *stop = p + 12 + length;
        if (crc32c(p + 21, stop - p - 21) != (uint32_t)big(p + 17, 4)) return 0;
        int attributes = (int)big(p + 21, 2);
        if (!(attributes & 0x20)) { /* not a control batch */
            if (found->number == found->room) {
                Py_ssize_t room = found->room ? 2 * found->room : 16;
                Batch *more = PyMem_RawRealloc(found->batches, room * sizeof(Batch));
                if (more == NULL) return 0;
                found->batches = more, found->room = room;
            }
            Batch *batch = &found->batches[found->number++];
            batch->base = (int64_t)big(p, 8);
            batch->first = (int64_t)big(p + 27, 8);
            batch->fixed = (int64_t)big(p + 35, 8);
            batch->is_fixed = attributes & 8;
            batch->codec = attributes & 7;
            batch->count = (int32_t)big(p + 57, 4);
            batch->pos = p + V2_HEAD;
            batch->stop = stop;
        }
        p = stop;
    }
    return 1;
}

/* -- records --------------------------------------------------------------------------------- */

/* Read a variable-length number of up to five bytes. Returns NULL where it is not complete. */
static inline const uint8_t *varint(const uint8_t *p, const uint8_t *end, uint64_t *value) {
    if (p < end && *p < 128) {
        *value = *p;
        return p + 1;
    }
    *value = 0;
    for (int shift = 0; shift < 35 && p < end; shift += 7) {
        uint8_t byte = *p++;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return p;
    }
    return NULL;
}

/* Read a time's difference. NULL also if a sum with it might need more than 64 bits. */
static inline const uint8_t *time_step(const uint8_t *p, const uint8_t *end, int64_t *value) {
    uint64_t found = 0;
    for (int shift = 0; shift < 63 && p < end; shift += 7) {
        uint8_t byte = *p++;
        found |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *value = (int64_t)(found >> 1) ^ -(int64_t)(found & 1);
            return p;
        }
    }
    return NULL;
}

static int is_utf8(const uint8_t *p, int64_t n) {
    const uint8_t *end = p + n;
    while (p < end) {
        uint8_t lead = *p++;
        if (lead < 0x80) continue;
        int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
        uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
        uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        if (lead < 0xc2 || lead > 0xf4 || end - p < more) return 0;
        for (; more; more--, low = 0x80, high = 0xbf, p++)
            if (*p < low || *p > high) return 0;
    }
    return 1;
}

static const uint8_t *read_headers(Found *found, const uint8_t *p, const uint8_t *end, int keep) {
    uint64_t number, name_size, value_size;
    if ((p = varint(p, end, &number)) == NULL || number & 1) return NULL;
    for (number >>= 1; number; number--) {
        if ((p = varint(p, end, &name_size)) == NULL || name_size & 1) return NULL;
        const uint8_t *name = p;
        if ((int64_t)(name_size >>= 1) > end - p || !is_utf8(p, (int64_t)name_size)) return NULL;
        if ((p = varint(p + name_size, end, &value_size)) == NULL) return NULL;
        const uint8_t *value = value_size & 1 ? NULL : p;
        value_size = value_size & 1 ? 0 : value_size >> 1;
        if ((int64_t)value_size > end - p) return NULL;
        p += value_size;
        if (!keep) continue;
        if (found->header_number == found->header_room) {
            int64_t room = found->header_room ? 2 * found->header_room : 64;
            Header *more = PyMem_RawRealloc(found->headers, (size_t)room * sizeof(Header));
            if (more == NULL) return NULL;
            found->headers = more, found->header_room = room;
        }
        Header *header = &found->headers[found->header_number++];
        header->name = name, header->name_size = (int32_t)name_size;
        header->value = value, header->value_size = (int32_t)value_size;
    }
    return p;
}

/* A column of bytes while it grows: where each value is, and the offsets of Arrow's array. */
typedef struct {
    const uint8_t **place;
    int32_t *offsets;
    uint8_t *valid;
    int64_t total, nulls;
    PyObject *made[2]; /* the buffers of validity and offsets */
} Bytes;

static inline int add(Bytes *column, int64_t row, const uint8_t *place, int64_t size) {
    column->place[row] = place;
    column->total += size;
    column->offsets[row + 1] = (int32_t)column->total;
    if (place == NULL) {
        column->nulls++;
        column->valid[row >> 3] &= (uint8_t)~(1 << (row & 7));
    }
    return column->total <= INT32_MAX;
}

typedef struct {
    int64_t start, *offsets, *times, nulls;
    uint8_t *valid;
    Bytes key, value;
    int32_t *lists; /* of headers */
    int wanted;
} Columns;

static int read_batch(Found *found, Columns *out, const Batch *batch) {
    const int64_t large = (int64_t)1 << 62;
    const uint8_t *p = batch->pos, *stop = batch->stop;
    int64_t row = found->rows, time = 0, step, first = batch->is_fixed ? batch->fixed : batch->first;
    uint64_t size, delta;
    if (first > large || first < -large) return 0;
    for (int64_t left = batch->count; left > 0; left--) {
        if ((p = varint(p, stop, &size)) == NULL || (int64_t)(size >> 1) > stop - p) return 0;
        const uint8_t *end = p + (size >> 1);
        if (p == end || (p = time_step(p + 1, end, &step)) == NULL) return 0;
        if ((p = varint(p, end, &delta)) == NULL || delta & 1) return 0;
        if (batch->base > INT64_MAX - (int64_t)(delta >> 1)) return 0;
        int64_t offset = batch->base + (int64_t)(delta >> 1);

        if ((p = varint(p, end, &size)) == NULL) return 0;
        const uint8_t *key = size & 1 ? NULL : p;
        int64_t key_size = size & 1 ? 0 : (int64_t)(size >> 1);
        if (key_size > end - p) return 0;
        if ((p = varint(p + key_size, end, &size)) == NULL) return 0;
        const uint8_t *value = size & 1 ? NULL : p;
        int64_t value_size = size & 1 ? 0 : (int64_t)(size >> 1);
        if (value_size > end - p) return 0;
        p += value_size;

        int keep = offset >= out->start;
        if (p < end && *p == 0)
            p++;
        else if ((p = read_headers(found, p, end, keep && out->wanted & HEADERS)) == NULL)
            return 0;
        if (p != end) return 0;
        if (!keep) continue;
        time = batch->is_fixed ? first : first + step;
        out->offsets[row] = offset;
        if (out->wanted & TIMESTAMP) {
            out->times[row] = time;
            if (time < 0) {
                out->nulls++;
                out->valid[row >> 3] &= (uint8_t)~(1 << (row & 7));
            }
        }
        if (out->wanted & KEY && !add(&out->key, row, key, key_size)) return 0;
        if (out->wanted & VALUE && !add(&out->value, row, value, value_size)) return 0;
        row++;
        if (out->wanted & HEADERS) {
            if (found->header_number > INT32_MAX) return 0;
            out->lists[row] = (int32_t)found->header_number;
        }
    }
    found->rows = row;
    return p == stop && batch->count >= 0;
}

/* -- Python's side --------------------------------------------------------------------------- */

/* Buffers that Python's `allocate` has made, and the function itself. */
typedef struct {
    PyObject *allocate, *made[16];
    Py_buffer views[16];
    int number;
} Rooms;

/* Make room for an array, of which all bytes are 255, or the first four are 0. NULL: an error. */
static void *room(Rooms *rooms, int64_t size, int fill, PyObject **to) {
    Py_buffer *view = &rooms->views[rooms->number];
    PyObject *made = PyObject_CallFunction(rooms->allocate, "L", (long long)size + 4);
    if (made == NULL || PyObject_GetBuffer(made, view, PyBUF_WRITABLE)) {
        Py_XDECREF(made);
        return NULL;
    }
    rooms->made[rooms->number++] = *to = made;
    memset(view->buf, fill, fill ? (size_t)size : 4);
    return view->buf;
}

static void *shelf(int64_t rows) {
    void *made = PyMem_RawMalloc((size_t)(rows + 1) * sizeof(uint8_t *));
    if (made == NULL) PyErr_NoMemory();
    return made;
}

static int reserve(Rooms *rooms, Bytes *column, int64_t rows) {
    return (column->place = shelf(rows)) != NULL &&
           (column->valid = room(rooms, (rows + 7) / 8, 255, &column->made[0])) != NULL &&
           (column->offsets = room(rooms, (rows + 1) * 4, 0, &column->made[1])) != NULL;
}

/* Arrow's three buffers of a column: validity, offsets, bytes. */
static PyObject *copied(Rooms *rooms, Bytes *column, int64_t rows) {
    PyObject *bytes;
    char *to = room(rooms, column->total, 0, &bytes);
    if (to == NULL) return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t row = 0; row < rows; row++) {
        int32_t size = column->offsets[row + 1] - column->offsets[row];
        if (size) memcpy(to + column->offsets[row], column->place[row], (size_t)size);
    }
    Py_END_ALLOW_THREADS
    PyObject *valid = column->nulls ? column->made[0] : Py_None;
    return Py_BuildValue("OOO", valid, column->made[1], bytes);
}

/* Replace the compressed batches' bytes. The list that is returned keeps the new ones. */
static PyObject *unpack(Found *found, PyObject *decompress) {
    PyObject *kept = PyList_New(0);
    for (Py_ssize_t i = 0; kept != NULL && i < found->number; i++) {
        Batch *batch = &found->batches[i];
        if (!batch->codec) continue;
        PyObject *bytes = PyObject_CallFunction(decompress, "iy#", batch->codec,
                                                (const char *)batch->pos, batch->stop - batch->pos);
        char *begin;
        Py_ssize_t size;
        if (bytes == NULL || PyBytes_AsStringAndSize(bytes, &begin, &size) ||
            PyList_Append(kept, bytes)) {
            Py_CLEAR(kept);
        } else {
            batch->pos = (const uint8_t *)begin;
            batch->stop = batch->pos + size;
        }
        Py_XDECREF(bytes);
    }
    return kept;
}

/* Their number, Arrow's offsets of the lists, names, values. */
static PyObject *header_buffers(Rooms *rooms, const Found *found, PyObject *lists) {
    Bytes name = {0}, value = {0};
    PyObject *names = NULL, *values = NULL, *made = NULL;
    int64_t number = found->header_number;
    int fits = 1;
    if (reserve(rooms, &name, number) && reserve(rooms, &value, number)) {
        for (int64_t i = 0; i < number && fits; i++) {
            const Header *header = &found->headers[i];
            fits = add(&name, i, header->name, header->name_size) &&
                   add(&value, i, header->value, header->value_size);
        }
        if (!fits)
            made = Py_NewRef(Py_None);
        else if ((names = copied(rooms, &name, number)) != NULL &&
                 (values = copied(rooms, &value, number)) != NULL)
            made = Py_BuildValue("LOOO", (long long)number, lists, names, values);
    }
    Py_XDECREF(names), Py_XDECREF(values);
    PyMem_RawFree((void *)name.place), PyMem_RawFree((void *)value.place);
    return made;
}

static PyObject *read_all(Rooms *rooms, Found *found, int64_t start, int wanted) {
    Columns out = {0};
    PyObject *offsets, *times = Py_None, *valid = Py_None, *lists = NULL, *made = NULL;
    PyObject *key = NULL, *value = NULL, *headers = NULL;
    int64_t most = 0;
    int good = 1;
    for (Py_ssize_t i = 0; i < found->number; i++) {
        const Batch *batch = &found->batches[i];
        if (batch->count < 0 || batch->count > (batch->stop - batch->pos) / SMALLEST_RECORD)
            Py_RETURN_NONE;
        most += batch->count;
    }
    if (most >= INT32_MAX) Py_RETURN_NONE;
    out.start = start;
    out.wanted = wanted;
    if ((out.offsets = room(rooms, most * 8, 0, &offsets)) == NULL) goto done;
    if (wanted & TIMESTAMP && ((out.times = room(rooms, most * 8, 0, &times)) == NULL ||
                               (out.valid = room(rooms, (most + 7) / 8, 255, &valid)) == NULL))
        goto done;
    if (wanted & KEY && !reserve(rooms, &out.key, most)) goto done;
    if (wanted & VALUE && !reserve(rooms, &out.value, most)) goto done;
    if (wanted & HEADERS && (out.lists = room(rooms, (most + 1) * 4, 0, &lists)) == NULL) goto done;

    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < found->number && good; i++)
        good = read_batch(found, &out, &found->batches[i]);
    Py_END_ALLOW_THREADS
    if (!good) {
        made = Py_NewRef(Py_None);
        goto done;
    }
    int64_t rows = found->rows;
    key = wanted & KEY ? copied(rooms, &out.key, rows) : Py_NewRef(Py_None);
    value = wanted & VALUE ? copied(rooms, &out.value, rows) : Py_NewRef(Py_None);
    headers = wanted & HEADERS ? header_buffers(rooms, found, lists) : Py_NewRef(Py_None);
    if (key == NULL || value == NULL || headers == NULL) goto done;
    long long last = rows ? out.offsets[rows - 1] : -1;
    made = Py_BuildValue("LLOOOOOO", (long long)rows, last, offsets, times,
                         out.nulls ? valid : Py_None, key, value, headers);
done:
    PyMem_RawFree((void *)out.key.place), PyMem_RawFree((void *)out.value.place);
    Py_XDECREF(key), Py_XDECREF(value), Py_XDECREF(headers);
    return made;
}

static PyObject *columns(PyObject *module, PyObject *args) {
    Py_buffer data;
    long long start;
    int wanted, good;
    PyObject *decompress, *kept = NULL, *made = NULL;
    Found found = {0};
    Rooms rooms = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "y*LiOO", &data, &start, &wanted, &decompress, &rooms.allocate))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    good = find_batches(&found, data.buf, data.len);
    Py_END_ALLOW_THREADS
    if (!good)
        made = Py_NewRef(Py_None);
    else if ((kept = unpack(&found, decompress)) != NULL)
        made = read_all(&rooms, &found, start, wanted);
    for (int i = 0; i < rooms.number; i++)
        PyBuffer_Release(&rooms.views[i]), Py_DECREF(rooms.made[i]);
    Py_XDECREF(kept);
    PyMem_RawFree(found.batches), PyMem_RawFree(found.headers);
    PyBuffer_Release(&data);
    return made;
}

static PyMethodDef methods[] = {{"columns", columns, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};

static int prepare(PyObject *module) {
    (void)module;
    prepare_checksums();
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, prepare},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
