/* Copies one request of a call to the box, in host memory, and seals it. */
#include "box.cuh"
#include "launch.h"

namespace kdtree {
namespace {

constexpr int kBoxThreads = 256;
constexpr int kBoxWarps = kBoxThreads / 32;
constexpr int kBoxCtas = 32;  // the bus is slower than these; more would be launched in vain at nearly every call

/* Each warp of the grid takes a row, then the one so many further. */
__device__ __forceinline__ int first_row() { return blockIdx.x * kBoxWarps + threadIdx.x / 32; }
__device__ __forceinline__ int row_step() { return gridDim.x * kBoxWarps; }

/* Rows of a call's tensors, [tokens, heads, ...]; strides in bytes. */
struct Source {
  const unsigned char* data;
  int64_t token_stride, head_stride;
  int heads;
};

/* From token `first` on; strides in elements, of which `width` are a row of so many bytes. */
__device__ __forceinline__ Source source(const void* data, int32_t row_bytes, int width, int64_t first,
                                         int64_t token_stride, int64_t head_stride = 0, int heads = 1) {
  const int size = row_bytes / width;
  const unsigned char* const bytes = static_cast<const unsigned char*>(data);
  return {bytes + first * token_stride * size, token_stride * size, head_stride * size, heads};
}

/* A warp's row: a multiple of 16 bytes; zeros where it comes from nowhere. */
__device__ __forceinline__ void copy_row(unsigned char* to, const unsigned char* from, int bytes) {
#pragma unroll 1  // unrolled, it spills: its guards are more than there are predicates
  for (int i = threadIdx.x % 32; i < bytes / 16; i += 32)
    reinterpret_cast<uint4*>(to)[i] =
        from != nullptr ? reinterpret_cast<const uint4*>(from)[i] : make_uint4(0, 0, 0, 0);
}

__device__ __forceinline__ void copy_rows(unsigned char* box, const BoxPart& part, const Source& from) {
  for (int row = first_row(); row < part.rows; row += row_step()) {
    const int token = row / from.heads, head = row - token * from.heads;
    copy_row(box + part.offset + int64_t{row} * part.width,
             from.data + token * from.token_stride + head * from.head_stride, part.width);
  }
}

}  // namespace

/* After each compare call with a box; its CTAs end at once but where `total` has chosen a request. */
extern "C" __global__ void __launch_bounds__(kBoxThreads)
    kdtree_fill_box(const __grid_constant__ kdtree_compare_args args, const __grid_constant__ BoxCall box,
                    BoxClaim* claim) {
  if (claim->request < 0) return;
  const kdtree_verify_args& call = box.call;
  const Request request = load_request(call, claim->request);
  const BoxLayout layout = box_layout(call, box.row_bytes, request);
  const int64_t first = request.row;
  unsigned char* const to = reinterpret_cast<unsigned char*>(box.memory);
  copy_rows(to, layout.q, source(call.q, layout.q.width, KDTREE_QK_DIM, first, call.q_stride_token, call.q_stride_head,
                                 call.num_heads));
  copy_rows(to, layout.k, source(call.k, layout.k.width, KDTREE_QK_DIM, first, call.k_stride_token));
  copy_rows(to, layout.v, source(call.v, layout.v.width, KDTREE_V_DIM, first, call.v_stride_token));
  copy_rows(to, layout.stock, source(args.stock, layout.stock.width, KDTREE_V_DIM, first, args.stock_stride_token,
                                     args.stock_stride_head, args.num_heads));
  copy_rows(to, layout.ours, source(args.ours, layout.ours.width, KDTREE_V_DIM, first, args.ours_stride_token,
                                    args.ours_stride_head, args.num_heads));
  for (int row = first_row(); row < layout.visible.rows; row += row_step()) {
    const DraftMask mask(call, request, row);
    for (int j = threadIdx.x % 32; j < layout.visible.width; j += 32)
      to[layout.visible.offset + row * layout.visible.width + j] = mask.sees(j);
  }
  for (int64_t row = first_row(); row < layout.prefix.rows; row += row_step()) {
    const int64_t slot = load_slot(call, request.prefix + row);
    const int64_t byte = slot * call.pool_stride_slot * (layout.prefix.width / KDTREE_QK_DIM);
    const unsigned char* const from = slot < 0 ? nullptr : static_cast<const unsigned char*>(call.pool) + byte;
    copy_row(to + layout.prefix.offset + row * layout.prefix.width, from, layout.prefix.width);
    if (slot < 0 && threadIdx.x % 32 == 0) atomicAdd(&claim->refused, 1ull);
  }

  /* The last CTA seals: the host must not see the number before it sees what all of them have stored. */
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(&claim->done, 1u) != gridDim.x - 1) return;
  describe_fill(box.memory, args, call, box.row_bytes, box.tag, *claim, atomicAdd(&claim->refused, 0ull));
  __threadfence_system();
  seal_box(box.memory, claim->fill);
}

const Entry kFillBox = {"kdtree_fill_box", reinterpret_cast<const void*>(kdtree_fill_box), kBoxThreads, 0};

int launch_fill_box(kdtree_compare_args& args, BoxCall& box, BoxClaim* claim) {
  void* arguments[] = {&args, &box, &claim};
  return launch(kFillBox, kBoxCtas, args.stream, arguments);
}

}  // namespace kdtree
