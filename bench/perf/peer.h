/* The interface of a library that shoal_perf compares with: a shared object that exports shoal_peer_get().
 * Plain C, so that a peer can be built with another compiler, or against another C++ library, than shoal_perf.
 * Every function but `name` and `version` is collective: all ranks call it in the same order, from one thread.
 * Functions that return int return 0 or, on failure, another value; last_error() then returns the reason. */
#ifndef SHOAL_BENCH_PERF_PEER_H
#define SHOAL_BENCH_PERF_PEER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHOAL_PEER_INTERFACE 2

typedef struct shoal_peer_config {
  int rank;
  int size;
  int timeout_s;
  int try_all_algorithms;   /* offer every algorithm of the library as a variant, not only its own choice */
  const char* host_address; /* this host's address towards the other ranks; null = the library finds it */
  /* Copies `data` of rank `root` to every rank, for rendezvous; returns 0 on success. */
  int (*exchange)(void* context, void* data, size_t bytes, int root);
  void* exchange_context;
} shoal_peer_config;

/* Types, operations and collectives have the numbers of shoal's DataType, ReduceOp and CollectiveKind. */
typedef struct shoal_peer_call {
  int collective;
  int type;
  int op;
  int root;
  size_t count;      /* elements of the message; of one rank's share if there are shares */
  const void* input; /* in place: this rank's place in, or of, the output, as defined in shoal/communicator.h */
  void* output;      /* broadcast: the buffer */
} shoal_peer_call;

typedef struct shoal_peer {
  int interface_number; /* SHOAL_PEER_INTERFACE */
  const char* name;
  const char* transport; /* for the table, "" if the library does not report it */
  const char* (*version)(void);
  int (*init)(const shoal_peer_config* config);
  /* Null if the library can make this call, else the reason. Not collective. */
  const char* (*why_unsupported)(int collective, int type, int op, size_t count);
  /* Makes `call`. */
  int (*run)(const shoal_peer_call* call);
  int (*barrier)(void);
  /* Number of variants of the library's all_reduce; variant 0 is its own choice. */
  int (*variants)(void);
  const char* (*variant_name)(int variant);
  int (*use_variant)(int variant);
  const char* (*last_error)(void);
  void (*finalize)(void);
} shoal_peer;

const shoal_peer* shoal_peer_get(void);

#ifdef __cplusplus
}
#endif
#endif
