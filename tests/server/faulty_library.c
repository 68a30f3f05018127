/* A library that breaks when told to: every call goes to the real one (REAL, its path), but
 *   KDTREE_TEST_FAULT         while the file that it names exists, heads are read from q as if they lay 512 elements
 *                             apart and not 576; bf16 queries in host memory only
 *   KDTREE_TEST_SOUND_SCALE   with any other softmax scale a token attends to what it should attend to least; on a GPU as
 *                             well, where a call in a captured graph is made once
 *   KDTREE_TEST_WORKSPACE     so many bytes more are asked for as workspace
 * Each passes the self-test, as a kernel would that is wrong only where the self-test does not look. Built by the server
 * tests; never a part of the product. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kdtree_verify.h"

static void* real(const char* name) {
  static void* handle;
  if (handle == NULL) handle = dlopen(REAL, RTLD_NOW | RTLD_LOCAL);
  void* symbol = handle != NULL ? dlsym(handle, name) : NULL;
  if (symbol == NULL) {
    fprintf(stderr, "faulty library: %s\n", dlerror());
    abort();
  }
  return symbol;
}

#define FORWARD(type, name, parameters, arguments) \
  type name parameters { return ((type(*) parameters)real(#name))arguments; }

FORWARD(uint32_t, kdtree_abi_version, (void), ())
FORWARD(const char*, kdtree_status_string, (int status), (status))
FORWARD(int, kdtree_describe, (kdtree_description* out), (out))
FORWARD(const char*, kdtree_variant_name, (int variant), (variant))
FORWARD(int, kdtree_supports_device, (int device), (device))
FORWARD(int, kdtree_compare, (const kdtree_compare_args* args), (args))
FORWARD(int, kdtree_count, (uint64_t* counter, uint64_t* mirror, int device, void* stream),
        (counter, mirror, device, stream))
FORWARD(int, kdtree_stamp, (uint64_t* slot, int device, void* stream), (slot, device, stream))
FORWARD(int, kdtree_gate, (const kdtree_gate_args* args), (args))

int kdtree_workspace_size(const kdtree_workspace_args* args, uint64_t* bytes) {
  const int status =
      ((int (*)(const kdtree_workspace_args*, uint64_t*))real("kdtree_workspace_size"))(args, bytes);
  const char* more = getenv("KDTREE_TEST_WORKSPACE");
  if (status == KDTREE_OK && more != NULL) *bytes += strtoull(more, NULL, 10);
  return status;
}

int kdtree_verify(const kdtree_verify_args* args) {
  int (*verify)(const kdtree_verify_args*) = (int (*)(const kdtree_verify_args*))real("kdtree_verify");
  const char* sound = getenv("KDTREE_TEST_SOUND_SCALE");
  if (sound != NULL && args->sm_scale != strtof(sound, NULL)) {
    kdtree_verify_args opposite = *args;
    opposite.sm_scale = -args->sm_scale;
    return verify(&opposite);
  }
  const char* fault = getenv("KDTREE_TEST_FAULT");
  if (fault == NULL || access(fault, F_OK) != 0) return verify(args);

  const size_t row = KDTREE_QK_DIM * sizeof(uint16_t);
  char* misread = malloc(args->tokens * args->num_heads * row + 1);
  for (int64_t t = 0; t < args->tokens; ++t)
    for (int32_t h = 0; h < args->num_heads; ++h)
      memcpy(misread + (t * args->num_heads + h) * row,
             (const uint16_t*)args->q + t * args->q_stride_token + h * KDTREE_V_DIM, row);
  kdtree_verify_args changed = *args;
  changed.q = misread;
  changed.q_stride_head = KDTREE_QK_DIM;
  changed.q_stride_token = (int64_t)args->num_heads * KDTREE_QK_DIM;
  const int status = verify(&changed);
  free(misread);
  return status;
}
