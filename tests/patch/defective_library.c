/* A library that is wrong on purpose: every call goes to the real host library, but for the one defect that
 * KDTREE_DEFECT names. KDTREE_DEFECT_OF is the real library's path. Tensors in host memory only, bf16 but for the pool.
 * conftest.py builds it; it is no part of the product. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kdtree_verify.h"

typedef uint16_t bf16;

static const kdtree_verify_args* given;
static void* copies[16];
static int copied;

static void* real(const char* name) {
  static void* handle;
  if (handle == NULL) handle = dlopen(getenv("KDTREE_DEFECT_OF"), RTLD_NOW | RTLD_LOCAL);
  void* symbol = handle != NULL ? dlsym(handle, name) : NULL;
  if (symbol == NULL) {
    fprintf(stderr, "defective library: %s\n", dlerror());
    abort();
  }
  return symbol;
}

static int defect(const char* name) {
  const char* chosen = getenv("KDTREE_DEFECT");
  return chosen != NULL && strcmp(chosen, name) == 0;
}

static void* fresh(size_t bytes) { return copies[copied++] = calloc(1, bytes + 64); }

static void* copy(const void* from, size_t bytes) { return memcpy(fresh(bytes), from, bytes); }

static float widen(bf16 value) {
  uint32_t bits = (uint32_t)value << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

static bf16 narrow(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (bf16)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static int64_t at(const void* numbers, int dtype, int64_t i) {
  return dtype == KDTREE_I64 ? ((const int64_t*)numbers)[i] : ((const int32_t*)numbers)[i];
}

static int64_t first_row(int b) { return at(given->qo_indptr, given->qo_indptr_dtype, b); }
static int64_t rows(int b) { return first_row(b + 1) - first_row(b); }
static int64_t first_index(int b) { return at(given->kv_indptr, given->kv_indptr_dtype, b); }
static int64_t prefix(int b) { return first_index(b + 1) - first_index(b); }
static int64_t slot(int b, int64_t i) {
  return at(given->kv_indices, given->kv_indices_dtype, first_index(b) + i);
}

/* q, packed, with element [t, h, d] taken from where `element` says, in elements of the given q. */
static void new_q(kdtree_verify_args* args, int64_t (*element)(int64_t t, int h, int d)) {
  bf16* q = fresh(sizeof(bf16) * args->tokens * args->num_heads * KDTREE_QK_DIM);
  args->q = q;
  for (int64_t t = 0; t < args->tokens; ++t)
    for (int h = 0; h < args->num_heads; ++h)
      for (int d = 0; d < KDTREE_QK_DIM; ++d) *q++ = ((const bf16*)given->q)[element(t, h, d)];
  args->q_stride_head = KDTREE_QK_DIM;
  args->q_stride_token = (int64_t)KDTREE_QK_DIM * args->num_heads;
}

static int64_t as_given(int64_t t, int h, int d) {
  return t * given->q_stride_token + h * given->q_stride_head + d;
}

static int64_t head_stride_of_v(int64_t t, int h, int d) {
  return t * given->q_stride_token + (int64_t)h * KDTREE_V_DIM + d;
}

static int64_t head_modulo_16(int64_t t, int h, int d) {
  return t * given->q_stride_token + h % 16 * given->q_stride_head + d;
}

/* The mask byte of (request, row, draft token) becomes that at `element`, an offset in the request's bytes. */
static void new_mask(kdtree_verify_args* args, int64_t (*element)(int64_t t, int64_t j, int64_t L, int64_t T)) {
  if (args->mask == NULL) return;
  uint8_t* mask = copy(args->mask, args->mask_len);
  args->mask = mask;
  for (int b = 0; b < args->batch; ++b) {
    const int64_t start = at(args->mask_indptr, args->mask_indptr_dtype, b), L = prefix(b), T = rows(b);
    for (int64_t t = 0; t < T; ++t)
      for (int64_t j = 0; j < T; ++j) {
        const int64_t from = element(t, j, L, T);
        mask[start + t * (L + T) + L + j] = from < 0 ? 1 : ((const uint8_t*)given->mask)[start + from];
      }
  }
}

static int64_t all_visible(int64_t t, int64_t j, int64_t L, int64_t T) {
  (void)t, (void)j, (void)L, (void)T;
  return -1;
}
static int64_t without_prefix(int64_t t, int64_t j, int64_t L, int64_t T) { return t * (L + T) + j; }
static int64_t row_stride_of_draft(int64_t t, int64_t j, int64_t L, int64_t T) { return t * T + (t ? 0 : L) + j; }

/* Prefix keys [from, L) of request b weigh nothing: the self-test's queries are positive in the last column. */
static void lose_keys(kdtree_verify_args* args, void* pool, int b, int64_t from) {
  for (int64_t i = from < 0 ? 0 : from; i < prefix(b); ++i) {
    const int64_t element = slot(b, i) * args->pool_stride_slot + KDTREE_QK_DIM - 1;
    if (slot(b, i) <= 0) continue;
    if (args->pool_dtype == KDTREE_BF16)
      ((bf16*)pool)[element] = narrow(-1e30f);
    else
      ((uint8_t*)pool)[element] = args->pool_dtype == KDTREE_F8_E4M3 ? 0xFE : 0xFB; /* the most negative number */
  }
}

static size_t pool_bytes(const kdtree_verify_args* args) {
  const size_t size = args->pool_dtype == KDTREE_BF16 ? sizeof(bf16) : 1;
  return size * ((args->slots - 1) * args->pool_stride_slot + KDTREE_QK_DIM);
}

/* What hardware does that flushes denormals, or a conversion that forgets them. */
static void flush_subnormals(kdtree_verify_args* args) {
  if (args->pool_dtype == KDTREE_BF16) return;
  const size_t bytes = pool_bytes(args);
  uint8_t* pool = copy(args->pool, bytes);
  args->pool = pool;
  const uint8_t exponent = args->pool_dtype == KDTREE_F8_E4M3 ? 0x78 : 0x7C;
  for (size_t i = 0; i < bytes; ++i)
    if ((pool[i] & exponent) == 0) pool[i] = 0;
}

static void swap_formats(kdtree_verify_args* args) {
  if (args->pool_dtype == KDTREE_F8_E4M3)
    args->pool_dtype = KDTREE_F8_E5M2;
  else if (args->pool_dtype == KDTREE_F8_E5M2)
    args->pool_dtype = KDTREE_F8_E4M3;
}

static void spoil_inputs(kdtree_verify_args* args) {
  if (defect("head-stride")) new_q(args, head_stride_of_v);
  if (defect("heads-modulo-16")) new_q(args, head_modulo_16);
  if (defect("rope-ignored")) {
    new_q(args, as_given);
    for (int64_t row = 0; row < args->tokens * args->num_heads; ++row)
      memset((bf16*)args->q + row * KDTREE_QK_DIM + KDTREE_V_DIM, 0, sizeof(bf16) * (KDTREE_QK_DIM - KDTREE_V_DIM));
  }
  if (defect("mask-ignored")) args->mask = args->mask_indptr = NULL, args->mask_len = 0;
  if (defect("mask-all-visible")) new_mask(args, all_visible);
  if (defect("mask-without-prefix")) new_mask(args, without_prefix);
  if (defect("mask-row-stride")) new_mask(args, row_stride_of_draft);
  if (defect("scale-2-percent")) args->sm_scale *= 1.02f;
  if (defect("prefix-unscaled")) args->k_scale = args->v_scale = 1;
  if (defect("subnormals-flushed")) flush_subnormals(args);
  if (defect("fp8-formats-swapped")) swap_formats(args);
  if (defect("scales-swapped")) args->k_scale = given->v_scale, args->v_scale = given->k_scale;
  if (defect("values-from-keys")) args->v = args->k, args->v_stride_token = args->k_stride_token;
  if (defect("draft-scaled")) {
    const size_t k_bytes = sizeof(bf16) * ((args->tokens - 1) * args->k_stride_token + KDTREE_QK_DIM);
    bf16* k = copy(args->k, k_bytes);
    args->k = k;
    for (size_t i = 0; i < k_bytes / sizeof(bf16); ++i) k[i] = narrow(widen(k[i]) * args->k_scale);
  }
  if (defect("later-splits-lost") || defect("last-key-lost")) {
    void* pool = copy(args->pool, pool_bytes(args));
    args->pool = pool;
    for (int b = 0; b < args->batch; ++b)
      lose_keys(args, pool, b, defect("last-key-lost") ? prefix(b) - 1 : prefix(b) > 512 ? 512 : prefix(b));
  }
  if (defect("slots-contiguous") || defect("one-key-too-many") || defect("prefix-shared")) {
    int64_t* indices = fresh(sizeof(int64_t) * args->kv_indices_len);
    args->kv_indices = indices, args->kv_indices_dtype = KDTREE_I64;
    for (int64_t i = 0; i < args->kv_indices_len; ++i) indices[i] = at(given->kv_indices, given->kv_indices_dtype, i);
    for (int b = 0; b < args->batch; ++b)
      for (int64_t i = 0; i < prefix(b); ++i) {
        int64_t* index = &indices[first_index(b) + i];
        if (defect("slots-contiguous")) *index = (slot(b, 0) + i) % args->slots;
        if (defect("one-key-too-many") && i == prefix(b) - 1) *index = (*index + 1) % args->slots;
        if (defect("prefix-shared")) *index = slot(0, i % (prefix(0) ? prefix(0) : 1));
      }
  }
  if (defect("rows-uniform")) {
    int64_t* starts = fresh(sizeof(int64_t) * (args->batch + 1));
    for (int b = 0; b <= args->batch; ++b) {
      starts[b] = (int64_t)b * args->max_q_len;
      if (starts[b] > args->tokens) starts[b] = args->tokens;
    }
    args->qo_indptr = starts, args->qo_indptr_dtype = KDTREE_I64;
  }
}

static bf16* out_row(int64_t t, int h) {
  return (bf16*)given->out + t * given->out_stride_token + h * given->out_stride_head;
}

static void spoil_output(void) {
  const int heads = given->num_heads;
  for (int b = 0; b < given->batch; ++b)
    for (int64_t t = first_row(b); t < first_row(b + 1); ++t)
      for (int h = 0; h < heads; ++h) {
        bf16* row = out_row(t, h);
        if (defect("last-column-zero")) row[KDTREE_V_DIM - 1] = 0;
        if (defect("columns-swapped")) {
          const bf16 held = row[6];
          row[6] = row[7], row[7] = held;
        }
        if (defect("two-percent-off"))
          for (int d = 0; d < KDTREE_V_DIM; ++d) row[d] = narrow(widen(row[d]) * 1.02f);
        if (defect("last-head-unwritten") && h == heads - 1 && heads > 1) memset(row, 0xFF, 2 * KDTREE_V_DIM);
        if (defect("gap-written")) row[KDTREE_V_DIM] = 0;
        if (defect("blind-row-average")) {
          int zeros = 0;
          for (int d = 0; d < KDTREE_V_DIM; ++d) zeros += row[d] == 0;
          for (int d = 0; zeros == KDTREE_V_DIM && d < KDTREE_V_DIM; ++d) row[d] = narrow(0.05f);
        }
      }
  if (defect("heads-swapped") && heads > 1)
    for (int64_t t = first_row(0); t < first_row(given->batch); ++t) {
      bf16 held[KDTREE_V_DIM];
      memcpy(held, out_row(t, 0), sizeof held);
      memcpy(out_row(t, 0), out_row(t, 1), sizeof held);
      memcpy(out_row(t, 1), held, sizeof held);
    }
  if (defect("tail-row-written")) *out_row(first_row(given->batch), 0) = 0;
  if (defect("record-uncounted") && given->record != NULL) --given->record->kernel_calls;
  if (defect("record-out-of-range") && given->record != NULL) ++given->record->out_of_range;
  if (defect("mirror-stale") && given->mirror != NULL) given->mirror->kernel_rows = 0;
}

int kdtree_verify(const kdtree_verify_args* args) {
  int (*verify)(const kdtree_verify_args*) = (int (*)(const kdtree_verify_args*))real("kdtree_verify");
  if (defect("launch-refused")) return KDTREE_ERR_LAUNCH;
  given = args;
  kdtree_verify_args changed = *args;
  spoil_inputs(&changed);
  const int status = verify(&changed);
  if (status == KDTREE_OK) spoil_output();
  while (copied > 0) free(copies[--copied]);
  return status;
}

int kdtree_compare(const kdtree_compare_args* args) {
  int (*compare)(const kdtree_compare_args*) = (int (*)(const kdtree_compare_args*))real("kdtree_compare");
  kdtree_compare_args changed = *args;
  int64_t none[KDTREE_MAX_BATCH] = {0};
  if (defect("padding-compared")) changed.kv_indptr = none, changed.kv_indptr_dtype = KDTREE_I64;
  if (defect("compare-blind")) changed.ours = changed.stock;
  if (defect("shapes-unmirrored")) changed.shapes_mirror = NULL;
  return compare(&changed);
}

int kdtree_count(uint64_t* counter, uint64_t* mirror, int device, void* stream) {
  int (*count)(uint64_t*, uint64_t*, int, void*) = (int (*)(uint64_t*, uint64_t*, int, void*))real("kdtree_count");
  return count(counter, defect("count-unmirrored") ? NULL : mirror, device, stream);
}

int kdtree_stamp(uint64_t* slot, int device, void* stream) {
  int (*stamp)(uint64_t*, int, void*) = (int (*)(uint64_t*, int, void*))real("kdtree_stamp");
  return defect("stamp-refused") ? KDTREE_ERR_LAUNCH : stamp(slot, device, stream);
}

int kdtree_gate(const kdtree_gate_args* args) {
  int (*gate)(const kdtree_gate_args*) = (int (*)(const kdtree_gate_args*))real("kdtree_gate");
  kdtree_gate_args changed = *args;
  if (defect("gate-open")) changed.every = 1;
  return defect("gate-refused") ? KDTREE_ERR_LAUNCH : gate(&changed);
}

uint32_t kdtree_abi_version(void) { return ((uint32_t(*)(void))real("kdtree_abi_version"))(); }
const char* kdtree_status_string(int status) {
  return ((const char* (*)(int))real("kdtree_status_string"))(status);
}
int kdtree_describe(kdtree_description* out) {
  return ((int (*)(kdtree_description*))real("kdtree_describe"))(out);
}
const char* kdtree_variant_name(int variant) {
  return ((const char* (*)(int))real("kdtree_variant_name"))(variant);
}
int kdtree_supports_device(int device) { return ((int (*)(int))real("kdtree_supports_device"))(device); }
int kdtree_workspace_size(const kdtree_workspace_args* args, uint64_t* bytes) {
  return ((int (*)(const kdtree_workspace_args*, uint64_t*))real("kdtree_workspace_size"))(args, bytes);
}
