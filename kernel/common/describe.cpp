#include <cstring>

#include "common/library.h"
#include "kdtree_verify.h"

namespace {

// Cuts to what fits; the rest of the field is zeros.
template <size_t size>
void copy_text(char (&field)[size], const char* text) {
  std::memset(field, 0, size);
  std::memcpy(field, text, strnlen(text, size - 1));
}

}  // namespace

extern "C" {

int kdtree_describe(kdtree_description* out) {
  if (out == nullptr) return KDTREE_ERR_NULL_POINTER;
  if (out->struct_size != sizeof(*out)) return KDTREE_ERR_STRUCT_SIZE;
  const kdtree::Library& library = kdtree::library;
  out->abi_version = KDTREE_ABI_VERSION;
  out->num_variants = static_cast<uint32_t>(library.num_variants);
  copy_text(out->version, KDTREE_VERSION);
  copy_text(out->device_kind, library.device_kind);
  copy_text(out->archs, library.archs);
  copy_text(out->compiler, KDTREE_COMPILER);
  copy_text(out->source_hash, KDTREE_SOURCE_HASH);
  copy_text(out->pad_, "");
  out->q_dtypes = library.q_dtypes;
  out->pool_dtypes = library.pool_dtypes;
  out->out_dtypes = library.out_dtypes;
  out->qk_dim = KDTREE_QK_DIM;
  out->v_dim = KDTREE_V_DIM;
  out->max_heads = KDTREE_MAX_HEADS;
  out->max_draft_tokens = KDTREE_MAX_DRAFT_TOKENS;
  out->max_batch = KDTREE_MAX_BATCH;
  return KDTREE_OK;
}

const char* kdtree_variant_name(int variant) {
  const bool exists = variant >= 1 && variant <= kdtree::library.num_variants;
  return exists ? kdtree::library.variant_names[variant - 1] : nullptr;
}

}  // extern "C"
