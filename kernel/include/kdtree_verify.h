/* KDTree: tree-verify attention for absorbed MLA over a paged KV pool. The C ABI.
 *
 * Two libraries implement this header: libkdtree_verify_cuda.so (the product) and
 * libkdtree_verify_host.so (plain C++, float64 accumulation: the tests' oracle, and what serves
 * when there is no GPU). Code above the ABI is the same for both.
 *
 * Rules that hold for every function:
 *   - no allocation on the device, no synchronization, no global state; safe under CUDA graph capture;
 *   - host-visible arguments are checked before anything is launched, and a refused call launches
 *     nothing and writes nothing;
 *   - what only the device can see (indptrs, indices, mask offsets) is checked there against the
 *     counts given here; a value out of range is counted in the record and never dereferenced
 *     (common/bounds.h says what takes its place);
 *   - strides and counts are in elements, sizes in bytes; the innermost stride is always 1.
 */
#ifndef KDTREE_VERIFY_H
#define KDTREE_VERIFY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KDTREE_VERSION "0.1.0"
#define KDTREE_ABI_VERSION 2u

#define KDTREE_QK_DIM 576           /* 512 latent + 64 rope */
#define KDTREE_V_DIM 512            /* V is the first 512 columns of a pool row */
#define KDTREE_MAX_HEADS 128        /* query heads of one rank */
#define KDTREE_MAX_DRAFT_TOKENS 256 /* T: query rows of one request */
#define KDTREE_MAX_BATCH 1024       /* requests of one call */
#define KDTREE_PREFIX_BUCKETS 9     /* longest prefix of a call: below 1024, below 2048, ... below 131072, more */
#define KDTREE_BATCH_BUCKETS 8      /* requests compared: 1, 2..3, 4..7, ... 64..127, more */

#if defined(_WIN32)
#error "KDTree targets Linux"
#endif
#define KDTREE_API __attribute__((visibility("default")))

typedef enum kdtree_status {
  KDTREE_OK = 0,
  KDTREE_ERR_STRUCT_SIZE = 1,  /* struct_size is not this ABI's */
  KDTREE_ERR_NULL_POINTER = 2, /* a required pointer is NULL */
  KDTREE_ERR_DTYPE = 3,        /* a dtype this library does not take in that place */
  KDTREE_ERR_LIMIT = 4,        /* a count is negative or above its limit */
  KDTREE_ERR_STRIDE = 5,       /* a stride is smaller than the row it separates */
  KDTREE_ERR_ALIGNMENT = 6,    /* a pointer or stride breaks the 16-byte rule of the CUDA library, or an array is not
                                  aligned to its own elements */
  KDTREE_ERR_WORKSPACE = 7,    /* workspace missing or smaller than kdtree_workspace_size says */
  KDTREE_ERR_DEVICE = 8,       /* not the kind of device this library runs on, or not a valid ordinal */
  KDTREE_ERR_ARCH = 9,         /* no machine code for this device's compute capability */
  KDTREE_ERR_LAUNCH = 10,      /* the CUDA runtime refused the launch */
  KDTREE_ERR_VALUE = 11        /* a scale is not finite, sm_scale * log2(e) or that * k_scale overflows float32, a bound is
                                  NaN, a variant does not exist, a mask has no mask_indptr, a box's call is not the
                                  compared one, `every` is 0 */
} kdtree_status;

typedef enum kdtree_dtype {
  KDTREE_F32 = 0,
  KDTREE_BF16 = 1,
  KDTREE_F8_E4M3 = 2, /* torch.float8_e4m3fn */
  KDTREE_F8_E5M2 = 3, /* torch.float8_e5m2 */
  KDTREE_U8 = 4,      /* also torch.bool: any nonzero byte is true */
  KDTREE_I32 = 5,
  KDTREE_I64 = 6
} kdtree_dtype;

/* What a layer's calls add up to. All fields are independent 8-byte values that only grow (last_* apart),
 * so that a reader of the mirror needs no lock: fields may be one call apart, never torn.
 * `record` lies in memory the device updates in place (device memory; the host library: any memory);
 * `mirror`, if given, is host memory mapped into the device: after each update the device stores the
 * same fields there, without reading them back. Both start as zeros, written by the owner. */
typedef struct kdtree_layer_record {
  uint64_t kernel_calls;   /* kdtree_verify calls that ran */
  uint64_t kernel_rows;    /* query tokens they computed */
  uint64_t out_of_range;   /* indptr, index, slot or mask reads refused on the device */
  uint64_t compare_calls;  /* kdtree_compare calls that ran */
  uint64_t compare_rows;   /* query tokens compared (padded requests left out) */
  uint64_t nonfinite;      /* elements NaN or Inf in ours where stock's is finite */
  uint64_t exceeded_calls; /* compare calls that broke a bound, or saw nonfinite > 0 */
  double max_abs;          /* largest |ours - stock| of all calls */
  double sum_sq_diff;      /* sum (ours - stock)^2 of all calls */
  double sum_sq_stock;     /* sum stock^2 over the same elements */
  double worst_rel_l2;     /* largest per-call ||ours - stock|| / ||stock|| */
  double last_rel_l2;      /* the same of the last call */
  double last_max_abs;     /* max |ours - stock| of the last call */
  uint64_t reserved[3];
} kdtree_layer_record; /* 128 bytes */

/* What the compared calls of one range of shapes add up to, of all layers of a process: compare keeps a table of them,
 * [KDTREE_PREFIX_BUCKETS][KDTREE_BATCH_BUCKETS]. Memory, mirror and updates are as a layer record's. */
typedef struct kdtree_shape_record {
  uint64_t calls;          /* kdtree_compare calls that compared a row */
  uint64_t exceeded_calls; /* of these, the ones that broke a bound, or saw nonfinite > 0 */
  uint64_t nonfinite;      /* elements NaN or Inf in ours where stock's is finite */
  double worst_rel_l2;
  double sum_rel_l2;       /* over calls */
  uint64_t timed_calls;    /* calls whose stamps were in order */
  uint64_t stock_ns;       /* of these, second stamp - first */
  uint64_t kernel_ns;      /* third - second */
} kdtree_shape_record; /* 64 bytes */

/* One tree-verify attention call: for each request b with query rows [qo_indptr[b], qo_indptr[b+1]),
 * T = their count, L = kv_indptr[b+1] - kv_indptr[b]:
 *   out[t,h] = softmax over (prefix keys 0..L-1, draft keys j that row t may see) of
 *              sm_scale * q[t,h] . key, times the values.
 * Prefix key i is pool[kv_indices[kv_indptr[b]+i]] * k_scale, its value the row's first 512 columns * v_scale.
 * Draft key j is k[qo_indptr[b]+j], its value v[qo_indptr[b]+j], never scaled, never read from the pool.
 * Row t sees the whole prefix. Draft j is visible when mask byte
 *   mask[mask_indptr[b] + t*(L+T) + L + j] != 0; with mask NULL, when j <= t (causal chain).
 * A row that sees nothing at all (L = 0, no draft bit) is written as zeros.
 * The CUDA library sums in float32, weighted values before it divides by the softmax's denominator: results are finite
 * where 576 * (largest |q|) * (largest |key|) < 2^128, and (keys that a row sees) * (largest |value|, before v_scale and
 * after it) * 2^8 < 2^128, with an fp8 pool's values 2^15 in place of 2^8.
 * Only rows named by qo_indptr are written. */
typedef struct kdtree_verify_args {
  uint64_t struct_size; /* sizeof(kdtree_verify_args) */

  const void* q;   /* [tokens, num_heads, 576] */
  const void* k;   /* [tokens, 576] draft keys, rope applied. With an fp8 pool below 2^103: the CUDA library then scales
                      each row of q to below 2^15, and a score sums 576 < 2^10 products in float32 */
  const void* v;   /* [tokens, 512] draft values */
  const void* pool; /* [slots, 576] */
  void* out;       /* [tokens, num_heads, 512] */
  int64_t q_stride_token, q_stride_head;
  int64_t k_stride_token, v_stride_token;
  int64_t pool_stride_slot;
  int64_t out_stride_token, out_stride_head;

  const void* qo_indptr;   /* [batch+1] */
  const void* kv_indptr;   /* [batch+1], prefix only */
  const void* kv_indices;  /* [kv_indices_len] slots; may have an unused tail */
  const void* mask;        /* [mask_len] bytes, or NULL: causal */
  const void* mask_indptr; /* [batch] or more, NULL with mask NULL */
  int64_t kv_indices_len, mask_len;

  int64_t tokens; /* rows of q, k, v and out */
  int64_t slots;  /* rows of pool */
  int32_t batch;
  int32_t num_heads;
  int32_t max_q_len; /* T: no request has more query rows; a longer one is cut there and counted out_of_range */

  int32_t q_dtype, kv_dtype /* k and v */, pool_dtype, out_dtype;
  int32_t qo_indptr_dtype, kv_indptr_dtype, kv_indices_dtype, mask_dtype, mask_indptr_dtype;

  float sm_scale;
  float k_scale, v_scale; /* descales of the pool, 1 where none */

  int32_t variant; /* 0: the library picks; 1..num_variants forces one (self-test, benchmarks) */
  int32_t device;  /* CUDA ordinal; -1 for the host library */
  void* stream;    /* cudaStream_t; NULL for the host library */
  void* workspace; /* 16-byte aligned, not initialized by anyone; one per stream that may verify at the same time */
  uint64_t workspace_bytes;

  kdtree_layer_record* record; /* or NULL */
  kdtree_layer_record* mirror; /* or NULL */
} kdtree_verify_args;

/* The box: host memory that keeps what one request of a call needs to be computed once more, since the call's own
 * memory holds other things by the time a host hears of it.
 *
 * A compare call that breaks a bound fills the box if it is empty: with the request that is furthest off among those that
 * break a bound themselves and fit, one with NaN or Inf before all others. It begins with this header; what the header
 * names lies at its byte offsets, each a multiple of 16, contiguous. The device stores `sealed` last, when all else is
 * there, and fills it no more until the host has stored the same number to `emptied`: it then is empty. Zeros at first. */
typedef struct kdtree_box_header {
  uint64_t sealed;    /* by the device: how many times the box was filled */
  uint64_t emptied;   /* by the host: how many of these it is done with */
  uint64_t too_large; /* calls that broke a bound while it was empty, and had no request to put there that fits */
  uint64_t found_full; /* calls that broke a bound while it was not empty */
  uint64_t tag;       /* the call's */
  double rel_l2;      /* ||ours - stock|| / ||stock|| of the whole call */
  double rel_l2_bound;
  int64_t prefix_len; /* L */
  uint64_t refused;   /* slots out of range: what lies in their place was never read */
  int32_t request, batch, draft_tokens /* T */, num_heads;
  int32_t q_dtype, kv_dtype, pool_dtype, out_dtype;
  int32_t masked; /* 0: no mask, visible is not there */
  float sm_scale, k_scale, v_scale;
  uint64_t q;       /* [T, num_heads, 576] */
  uint64_t k;       /* [T, 576] */
  uint64_t v;       /* [T, 512] */
  uint64_t visible; /* [T, T] bytes, 1 where row t sees draft key j */
  uint64_t prefix;  /* [L, 576] */
  uint64_t stock;   /* [T, num_heads, 512] */
  uint64_t ours;    /* [T, num_heads, 512] */
  uint64_t bytes;   /* of all of it */
  uint64_t reserved[9];
} kdtree_box_header; /* 256 bytes */

/* What the device knows of its box without asking: device memory (the host library: any). Zeros at first. */
typedef struct kdtree_box_state {
  uint64_t filled; /* fills begun */
  uint64_t too_large, found_full; /* the header's */
  uint64_t reserved;
} kdtree_box_state; /* 32 bytes */

typedef struct kdtree_box_args {
  uint64_t struct_size;
  const kdtree_verify_args* call; /* as kdtree_verify took it, of the same tokens, heads and requests */
  kdtree_box_state* state;
  kdtree_box_header* memory; /* 16-byte aligned; host memory mapped into the device */
  uint64_t memory_bytes;
  uint64_t tag; /* any number, which tells whose call it is */
} kdtree_box_args;

/* Compares ours with stock's output of the same call, element by element in float64, and adds the result
 * to the record. Left out: rows that qo_indptr does not name, padded requests (prefix length 1 on slot 0,
 * SGLang's graph padding), elements where stock itself is NaN or Inf. A call in which nothing is left to compare
 * adds to out_of_range alone. */
typedef struct kdtree_compare_args {
  uint64_t struct_size;
  const void* stock; /* [tokens, num_heads, 512] */
  const void* ours;  /* [tokens, num_heads, 512] */
  int64_t stock_stride_token, stock_stride_head;
  int64_t ours_stride_token, ours_stride_head;
  const void* qo_indptr;
  const void* kv_indptr;
  const void* kv_indices;
  int64_t kv_indices_len;
  int64_t tokens;
  int32_t batch;
  int32_t num_heads;
  int32_t stock_dtype, ours_dtype;
  int32_t qo_indptr_dtype, kv_indptr_dtype, kv_indices_dtype;
  int32_t device;
  double rel_l2_bound;  /* a call above either bound counts in exceeded_calls */
  double max_abs_bound; /* <= 0: not checked */
  void* stream;
  void* workspace;
  uint64_t workspace_bytes;
  kdtree_layer_record* record; /* required */
  kdtree_layer_record* mirror; /* or NULL */
  kdtree_shape_record* shapes;        /* the table, or NULL */
  kdtree_shape_record* shapes_mirror; /* or NULL */
  const uint64_t* stamps; /* 3 of kdtree_stamp, before stock, between stock and ours, after ours; NULL: not timed */
  const kdtree_box_args* box; /* or NULL */
} kdtree_compare_args;

/* Lets one call of `every` through, so that a captured graph does some work at some of its replays: copies both indptrs to
 * `gated_...` if (*counter + phase) % every is 0, else fills these with zeros, which name no row; and adds 1 to *counter. */
typedef struct kdtree_gate_args {
  uint64_t struct_size;
  const void* qo_indptr; /* [batch+1] */
  const void* kv_indptr; /* [batch+1] */
  void* gated_qo_indptr; /* [batch+1], of the same dtype */
  void* gated_kv_indptr;
  uint64_t* counter; /* device memory (the host library: any), zero at first */
  uint64_t every;    /* >= 1 */
  uint64_t phase;
  int32_t batch;
  int32_t qo_indptr_dtype, kv_indptr_dtype;
  int32_t device;
  void* stream;
} kdtree_gate_args;

/* Limits that size a workspace. It depends on the device and these, never on lengths. */
typedef struct kdtree_workspace_args {
  uint64_t struct_size;
  int32_t device;
  int32_t num_heads;
  int32_t max_q_len;
  int32_t max_batch;
} kdtree_workspace_args;

typedef struct kdtree_description {
  uint64_t struct_size; /* set by the caller */
  uint32_t abi_version;
  uint32_t num_variants;
  char version[32];      /* KDTREE_VERSION */
  char device_kind[16];  /* "cuda" or "host" */
  char archs[64];        /* "sm_120a,sm_90a"; the host library: "" */
  char compiler[64];     /* "nvcc 13.0.88", "g++ 12.2.0" */
  char source_hash[65];  /* sha256 over the library's sources, hex */
  char pad_[3];
  uint32_t q_dtypes;     /* bit 1<<kdtree_dtype set: taken for q, k, v */
  uint32_t pool_dtypes;
  uint32_t out_dtypes;
  int32_t qk_dim, v_dim, max_heads, max_draft_tokens, max_batch;
} kdtree_description;

KDTREE_API uint32_t kdtree_abi_version(void);
/* One line for a status, never NULL; an unknown status has a text too. */
KDTREE_API const char* kdtree_status_string(int status);
KDTREE_API int kdtree_describe(kdtree_description* out);
/* Name of variant 1..num_variants ("m64n32"), NULL outside. */
KDTREE_API const char* kdtree_variant_name(int variant);
/* KDTREE_OK where this library has machine code for `device` (CUDA ordinal; the host library: -1). */
KDTREE_API int kdtree_supports_device(int device);
KDTREE_API int kdtree_workspace_size(const kdtree_workspace_args* args, uint64_t* bytes);
KDTREE_API int kdtree_verify(const kdtree_verify_args* args);
KDTREE_API int kdtree_compare(const kdtree_compare_args* args);
/* Adds 1 to *counter on the stream and stores the sum to *mirror (NULL: nowhere). Counts what Python cannot
 * see under graph replay: declined calls. */
KDTREE_API int kdtree_count(uint64_t* counter, uint64_t* mirror, int device, void* stream);
/* Stores the time at which the stream comes here to *slot, in nanoseconds of a clock that counts on from an unknown
 * moment: the GPU's, which some cards count in steps of a microsecond; the host library: a steady one. */
KDTREE_API int kdtree_stamp(uint64_t* slot, int device, void* stream);
KDTREE_API int kdtree_gate(const kdtree_gate_args* args);

#ifdef __cplusplus
}
#endif
#endif /* KDTREE_VERIFY_H */
