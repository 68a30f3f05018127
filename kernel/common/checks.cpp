#include "common/checks.h"

#include <cmath>
#include <initializer_list>

#include "common/dtype.h"
#include "common/library.h"

namespace kdtree {
namespace {

constexpr int kWorkspaceAlignment = 16;
constexpr int64_t kMaxSpan = int64_t{1} << 60;  // elements from an array's first to its last

bool taken(uint32_t dtypes, int32_t dtype) { return dtype >= 0 && dtype < 32 && (dtypes >> dtype & 1u); }

bool is_index(int32_t dtype) { return dtype == KDTREE_I32 || dtype == KDTREE_I64; }

bool within(int64_t value, int64_t low, int64_t high) { return value >= low && value <= high; }

bool aligned(const void* pointer, int bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

// Rows of `width` elements: [count, width], or [count, heads, width].
struct Rows {
  const void* data;
  int32_t dtype;
  int64_t width;
  int64_t count, stride;
  int64_t heads, head_stride;
};

int check_rows(const Rows& rows) {
  if (rows.count == 0) return KDTREE_OK;
  if (rows.data == nullptr) return KDTREE_ERR_NULL_POINTER;
  const int size = element_size(rows.dtype);
  const int alignment = library.row_alignment > size ? library.row_alignment : size;
  if (!aligned(rows.data, alignment)) return KDTREE_ERR_ALIGNMENT;
  const int64_t strides[2][2] = {{rows.count, rows.stride}, {rows.heads, rows.head_stride}};
  int64_t span = rows.width;
  for (const auto& [count, stride] : strides) {
    if (count <= 1) continue;
    if (stride < rows.width) return KDTREE_ERR_STRIDE;
    int64_t extent;
    if (__builtin_mul_overflow(count - 1, stride, &extent) || __builtin_add_overflow(span, extent, &span) ||
        span > kMaxSpan)
      return KDTREE_ERR_LIMIT;
    if (stride * size % alignment != 0) return KDTREE_ERR_ALIGNMENT;
  }
  return KDTREE_OK;
}

// Whether no two rows share an element: tokens of heads, or heads of tokens.
bool disjoint(const Rows& rows) {
  if (rows.count <= 1 || rows.heads <= 1) return true;
  return rows.stride >= (rows.heads - 1) * rows.head_stride + rows.width ||
         rows.head_stride >= (rows.count - 1) * rows.stride + rows.width;
}

int check_indices(const void* data, int32_t dtype, int64_t count) {
  if (count == 0) return KDTREE_OK;
  if (data == nullptr) return KDTREE_ERR_NULL_POINTER;
  return aligned(data, element_size(dtype)) ? KDTREE_OK : KDTREE_ERR_ALIGNMENT;
}

int first_error(std::initializer_list<int> statuses) {
  for (const int status : statuses)
    if (status != KDTREE_OK) return status;
  return KDTREE_OK;
}

// Scores are computed in base 2, in float32. One that is infinite would make NaN of keys of zero.
bool scales_scores(float sm_scale, float k_scale) {
  constexpr float kLog2E = 1.4426950408889634f;
  return std::isfinite(sm_scale * kLog2E) && std::isfinite(sm_scale * kLog2E * k_scale);
}

int check_records(const kdtree_layer_record* record, const kdtree_layer_record* mirror) {
  const bool ok = aligned(record, alignof(kdtree_layer_record)) && aligned(mirror, alignof(kdtree_layer_record));
  return ok ? KDTREE_OK : KDTREE_ERR_ALIGNMENT;
}

int check_words(const void* a, const void* b, const void* c) {
  return aligned(a, 8) && aligned(b, 8) && aligned(c, 8) ? KDTREE_OK : KDTREE_ERR_ALIGNMENT;
}

// The box of a call that passed all other checks.
int check_box(const kdtree_box_args& box, const kdtree_compare_args& compared) {
  if (box.struct_size != sizeof(box)) return KDTREE_ERR_STRUCT_SIZE;
  if (box.state == nullptr || box.memory == nullptr) return KDTREE_ERR_NULL_POINTER;
  if (!aligned(box.state, alignof(kdtree_box_state)) || !aligned(box.memory, 16)) return KDTREE_ERR_ALIGNMENT;
  if (box.memory_bytes < sizeof(kdtree_box_header)) return KDTREE_ERR_LIMIT;
  const int status = check_verify(box.call);
  if (status != KDTREE_OK) return status;
  const kdtree_verify_args& call = *box.call;
  const bool same = call.tokens == compared.tokens && call.batch == compared.batch &&
                    call.num_heads == compared.num_heads && call.qo_indptr == compared.qo_indptr &&
                    call.kv_indptr == compared.kv_indptr && call.kv_indices == compared.kv_indices &&
                    compared.stock_dtype == compared.ours_dtype;
  return same ? KDTREE_OK : KDTREE_ERR_VALUE;
}

}  // namespace

int check_verify(const kdtree_verify_args* args) {
  if (args == nullptr) return KDTREE_ERR_NULL_POINTER;
  if (args->struct_size != sizeof(*args)) return KDTREE_ERR_STRUCT_SIZE;
  const kdtree_verify_args& a = *args;

  if (!taken(library.q_dtypes, a.q_dtype) || !taken(library.q_dtypes, a.kv_dtype) ||
      !taken(library.pool_dtypes, a.pool_dtype) || !taken(library.out_dtypes, a.out_dtype) ||
      !is_index(a.qo_indptr_dtype) || !is_index(a.kv_indptr_dtype) || !is_index(a.kv_indices_dtype))
    return KDTREE_ERR_DTYPE;
  if (a.mask != nullptr && (a.mask_dtype != KDTREE_U8 || !is_index(a.mask_indptr_dtype))) return KDTREE_ERR_DTYPE;

  if (!within(a.batch, 0, KDTREE_MAX_BATCH) || !within(a.num_heads, 1, KDTREE_MAX_HEADS) ||
      !within(a.max_q_len, 1, KDTREE_MAX_DRAFT_TOKENS) || !within(a.tokens, 0, kMaxCount) ||
      !within(a.slots, 0, kMaxCount) || !within(a.kv_indices_len, 0, kMaxCount) ||
      !within(a.mask_len, 0, kMaxCount))
    return KDTREE_ERR_LIMIT;

  if (!scales_scores(a.sm_scale, a.k_scale) || !std::isfinite(a.k_scale) || !std::isfinite(a.v_scale) ||
      !within(a.variant, 0, library.num_variants) || (a.mask != nullptr && a.mask_indptr == nullptr))
    return KDTREE_ERR_VALUE;
  if (a.mask == nullptr && a.mask_len > 0) return KDTREE_ERR_NULL_POINTER;

  const Rows out = {a.out, a.out_dtype, KDTREE_V_DIM, a.tokens, a.out_stride_token, a.num_heads, a.out_stride_head};
  const int status = first_error({
      check_rows({a.q, a.q_dtype, KDTREE_QK_DIM, a.tokens, a.q_stride_token, a.num_heads, a.q_stride_head}),
      check_rows({a.k, a.kv_dtype, KDTREE_QK_DIM, a.tokens, a.k_stride_token, 1, 0}),
      check_rows({a.v, a.kv_dtype, KDTREE_V_DIM, a.tokens, a.v_stride_token, 1, 0}),
      check_rows({a.pool, a.pool_dtype, KDTREE_QK_DIM, a.slots, a.pool_stride_slot, 1, 0}),
      check_rows(out),
      check_indices(a.qo_indptr, a.qo_indptr_dtype, a.batch + 1),
      check_indices(a.kv_indptr, a.kv_indptr_dtype, a.batch + 1),
      check_indices(a.kv_indices, a.kv_indices_dtype, a.kv_indices_len),
      a.mask != nullptr ? check_indices(a.mask_indptr, a.mask_indptr_dtype, a.batch) : KDTREE_OK,
      check_records(a.record, a.mirror),
  });
  if (status != KDTREE_OK) return status;
  return disjoint(out) ? KDTREE_OK : KDTREE_ERR_STRIDE;
}

int check_compare(const kdtree_compare_args* args) {
  if (args == nullptr) return KDTREE_ERR_NULL_POINTER;
  if (args->struct_size != sizeof(*args)) return KDTREE_ERR_STRUCT_SIZE;
  const kdtree_compare_args& a = *args;

  if (!taken(library.out_dtypes, a.stock_dtype) || !taken(library.out_dtypes, a.ours_dtype) ||
      !is_index(a.qo_indptr_dtype) || !is_index(a.kv_indptr_dtype) || !is_index(a.kv_indices_dtype))
    return KDTREE_ERR_DTYPE;
  if (!within(a.batch, 0, KDTREE_MAX_BATCH) || !within(a.num_heads, 1, KDTREE_MAX_HEADS) ||
      !within(a.tokens, 0, kMaxCount) || !within(a.kv_indices_len, 0, kMaxCount))
    return KDTREE_ERR_LIMIT;
  if (std::isnan(a.rel_l2_bound) || std::isnan(a.max_abs_bound)) return KDTREE_ERR_VALUE;
  if (a.record == nullptr) return KDTREE_ERR_NULL_POINTER;

  const int status = first_error({
      check_rows({a.stock, a.stock_dtype, KDTREE_V_DIM, a.tokens, a.stock_stride_token, a.num_heads,
                  a.stock_stride_head}),
      check_rows({a.ours, a.ours_dtype, KDTREE_V_DIM, a.tokens, a.ours_stride_token, a.num_heads,
                  a.ours_stride_head}),
      check_indices(a.qo_indptr, a.qo_indptr_dtype, a.batch + 1),
      check_indices(a.kv_indptr, a.kv_indptr_dtype, a.batch + 1),
      check_indices(a.kv_indices, a.kv_indices_dtype, a.kv_indices_len),
      check_records(a.record, a.mirror),
      check_words(a.shapes, a.shapes_mirror, a.stamps),
  });
  return status == KDTREE_OK && a.box != nullptr ? check_box(*a.box, a) : status;
}

int check_gate(const kdtree_gate_args* args) {
  if (args == nullptr) return KDTREE_ERR_NULL_POINTER;
  if (args->struct_size != sizeof(*args)) return KDTREE_ERR_STRUCT_SIZE;
  const kdtree_gate_args& a = *args;
  if (!is_index(a.qo_indptr_dtype) || !is_index(a.kv_indptr_dtype)) return KDTREE_ERR_DTYPE;
  if (!within(a.batch, 0, KDTREE_MAX_BATCH)) return KDTREE_ERR_LIMIT;
  if (a.every == 0) return KDTREE_ERR_VALUE;
  return first_error({
      check_indices(a.qo_indptr, a.qo_indptr_dtype, a.batch + 1),
      check_indices(a.kv_indptr, a.kv_indptr_dtype, a.batch + 1),
      check_indices(a.gated_qo_indptr, a.qo_indptr_dtype, a.batch + 1),
      check_indices(a.gated_kv_indptr, a.kv_indptr_dtype, a.batch + 1),
      check_stamp(a.counter),
  });
}

int check_stamp(const uint64_t* slot) { return check_indices(slot, KDTREE_I64, 1); }

int check_workspace_args(const kdtree_workspace_args* args, const uint64_t* bytes) {
  if (args == nullptr || bytes == nullptr) return KDTREE_ERR_NULL_POINTER;
  if (args->struct_size != sizeof(*args)) return KDTREE_ERR_STRUCT_SIZE;
  const bool ok = within(args->num_heads, 1, KDTREE_MAX_HEADS) &&
                  within(args->max_q_len, 1, KDTREE_MAX_DRAFT_TOKENS) &&
                  within(args->max_batch, 0, KDTREE_MAX_BATCH);
  return ok ? KDTREE_OK : KDTREE_ERR_LIMIT;
}

int check_workspace(const void* workspace, uint64_t bytes, uint64_t needed) {
  if (needed == 0) return KDTREE_OK;
  if (workspace == nullptr || bytes < needed) return KDTREE_ERR_WORKSPACE;
  return aligned(workspace, kWorkspaceAlignment) ? KDTREE_OK : KDTREE_ERR_ALIGNMENT;
}

}  // namespace kdtree
