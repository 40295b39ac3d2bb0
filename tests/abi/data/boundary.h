/* What crosses between an IREE executable and its host, in our own words. Names are ours; order, widths and
   nesting are the contract. */
#include <stddef.h>
#include <stdint.h>

struct executable_library_header {
  uint32_t version;
  const char *name;
  uint32_t features;
  uint32_t sanitizer;
};
struct executable_import_table {
  uint32_t count;
  const char *const *symbols;
};
struct executable_environment;
struct executable_dispatch_state;
struct executable_workgroup_state;
typedef int (*dispatch_function)(const struct executable_environment *, const struct executable_dispatch_state *,
                                 const struct executable_workgroup_state *);
typedef int (*import_thunk)(int (*import)(void *, void *, void *), void *, void *, void *);
struct executable_dispatch_attrs {
  uint64_t flags;
  uint16_t local_memory_pages;
  uint8_t constant_count, binding_count;
  uint32_t workgroup_size_x, workgroup_size_y;
  uint16_t workgroup_size_z, parameter_count;
  uint64_t reserved_1[5];
};
struct executable_export_table {
  uint32_t count;
  const dispatch_function *ptrs;
  const struct executable_dispatch_attrs *attrs;
  const void *const *params;
  const void *occupancy;
  const char *const *names;
  const char *const *tags;
  const char *const *parameter_names;
  const void *source_locations;
  const void *stage_locations;
};
struct executable_constant_table {
  uint32_t count;
};
struct executable_source_file_table {
  uint32_t count;
  const void *files;
};
struct executable_library {
  const struct executable_library_header *header;
  struct executable_import_table imports;
  struct executable_export_table exports;
  struct executable_constant_table constants;
  struct executable_source_file_table sources;
};
struct processor {
  uint64_t data[8];
};
struct executable_environment {
  const uint32_t *constants;
  import_thunk thunk;
  const void *import_funcs;
  const void **import_contexts;
  struct processor processor;
};
struct executable_dispatch_state {
  uint32_t workgroup_size_x, workgroup_size_y;
  uint16_t workgroup_size_z, constant_count;
  uint32_t workgroup_count_x, workgroup_count_y;
  uint16_t workgroup_count_z;
  uint8_t max_concurrency, binding_count;
  const uint32_t *constants;
  void *const *binding_ptrs;
  const size_t *binding_lengths;
};
struct executable_workgroup_state {
  uint32_t workgroup_id_x, workgroup_id_y;
  uint16_t workgroup_id_z, reserved;
  uint32_t processor_id;
  void *local_memory;
  uint32_t local_memory_size;
};

/* What crosses between a Halide pipeline and its host. */
struct pipeline_type {
  uint8_t code, bits;
  uint16_t lanes;
};
struct pipeline_dimension {
  int32_t min, extent, stride;
  uint32_t flags;
};
struct pipeline_buffer {
  uint64_t device;
  const void *device_interface;
  uint8_t *host;
  uint64_t flags;
  struct pipeline_type type;
  int32_t dimensions;
  struct pipeline_dimension *dim;
  void *padding;
};
struct pipeline_metadata {
  int32_t version, num_arguments;
  const void *arguments;
  const char *target, *name;
};
struct pipeline_argument {
  const char *name;
  int32_t kind, dimensions;
  struct pipeline_type type;
  const void *scalar_def, *scalar_min, *scalar_max, *scalar_estimate, *buffer_estimates;
};
struct pipeline_semaphore {
  uint64_t state[2];
};
struct pipeline_acquire {
  struct pipeline_semaphore *semaphore;
  int count;
};
struct pipeline_task {
  int (*fn)(void *, void *, int, int, unsigned char *, void *);
  unsigned char *closure;
  const char *name;
  struct pipeline_acquire *semaphores;
  int num_semaphores, min, extent, min_threads;
  _Bool serial;
};
struct pipeline_device {
  void (*functions[15])(void);
  const void *impl;
};
