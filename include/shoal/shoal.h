/* shoal for C (C99) and for every language that can call C. The C++ interface is <shoal/communicator.h>.
 *
 *   shoal_comm_t comm;
 *   if (shoal_comm_create(NULL, &comm) != SHOAL_OK) fail(shoal_last_error_message());
 *   shoal_all_reduce(comm, gradient, gradient, count, SHOAL_FLOAT32, SHOAL_SUM);
 *   shoal_comm_destroy(comm);
 *
 * Names that end in _t are handles; statuses, types and operations are ints. Every function returns a shoal_status unless it
 * cannot fail; shoal_last_error_message() describes the last failure in a thread. No function throws, exits or prints.
 *
 * Numbers and structs are stable: programs compiled against this header keep working with later libraries of the same major
 * version.
 */
#ifndef SHOAL_SHOAL_H_
#define SHOAL_SHOAL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHOAL_VERSION_MAJOR 0
#define SHOAL_VERSION_MINOR 1
#define SHOAL_VERSION_PATCH 0
/* The version as one number that can be compared: 10203 is 1.2.3. */
#define SHOAL_VERSION (SHOAL_VERSION_MAJOR * 10000 + SHOAL_VERSION_MINOR * 100 + SHOAL_VERSION_PATCH)

/* Outcome of a call. */
typedef int shoal_status;
enum {
  SHOAL_OK = 0,
  SHOAL_INVALID_ARGUMENT = 1, /* the call makes no sense; nothing was started */
  SHOAL_MISMATCH = 2,         /* ranks disagree about a call; closes the communicator */
  SHOAL_TIMEOUT = 3,          /* a deadline passed; closes the communicator, but not from shoal_work_wait_for */
  SHOAL_PEER_FAILED = 4,      /* a rank died or closed its connection; closes the communicator */
  SHOAL_ABORTED = 5,          /* the communicator was closed, here or by another rank */
  SHOAL_SYSTEM_ERROR = 6,     /* the operating system refused something */
  SHOAL_UNSUPPORTED = 7,      /* this build, machine or algorithm cannot do it */
  SHOAL_NOT_FOUND = 8,        /* a key, file or name does not exist */
  SHOAL_INTERNAL = 9          /* a bug in shoal */
};

/* Type of an element. Floats of 16 and 8 bits are summed in 32 bits and rounded once. A result that is too large for 8 bits
 * becomes NaN (E4M3FN, which has no infinity) or infinity (E5M2). */
typedef int shoal_data_type;
enum {
  SHOAL_FLOAT32 = 0,
  SHOAL_FLOAT64 = 1,
  SHOAL_FLOAT16 = 2,
  SHOAL_BFLOAT16 = 3,
  SHOAL_INT8 = 4,
  SHOAL_INT16 = 5,
  SHOAL_INT32 = 6,
  SHOAL_INT64 = 7,
  SHOAL_UINT8 = 8,
  SHOAL_UINT16 = 9,
  SHOAL_UINT32 = 10,
  SHOAL_UINT64 = 11,
  SHOAL_FLOAT8_E4M3FN = 12,
  SHOAL_FLOAT8_E5M2 = 13
};

/* How elements are combined. SHOAL_SUM and SHOAL_PROD of integers wrap: the result is correct modulo 2^bits. SHOAL_AVG is the
 * sum divided by the number of ranks; for integers the exact sum is divided and rounded toward zero (on CUDA memory this is
 * refused with SHOAL_UNSUPPORTED). The bitwise operations take integers only. */
typedef int shoal_reduce_op;
enum {
  SHOAL_SUM = 0,
  SHOAL_PROD = 1,
  SHOAL_MIN = 2,
  SHOAL_MAX = 3,
  SHOAL_AVG = 4,
  SHOAL_BAND = 5,
  SHOAL_BOR = 6,
  SHOAL_BXOR = 7
};

/* A group of ranks that call collectives together, in the same order.
 * Thread rule: any thread may call; shoal_comm_destroy must be the last call. */
typedef struct shoal_comm* shoal_comm_t;

/* One operation in flight.
 * Thread rule: any thread may call; shoal_work_free must be the last call. */
typedef struct shoal_work* shoal_work_t;

/* Settings of a communicator. Initialise with SHOAL_CONFIG_INITIALIZER, then change fields. The first three fields tell a later
 * library which fields exist. A field that is not changed takes its value from the SHOAL_* environment, else its default. */
typedef struct shoal_config {
  size_t size_bytes;
  uint32_t magic;
  uint32_t version;
  int64_t timeout_ms;     /* deadline of each call and of the start-up, in milliseconds; 0: not set here */
  const char* algorithm;  /* force this algorithm; NULL: not set here; "": let shoal choose */
  const char* transports; /* comma-separated, for example "shm,tcp"; NULL: not set here; "": the best that is reachable */
} shoal_config;
#define SHOAL_CONFIG_MAGIC 0x53484F41u /* "SHOA" */
#define SHOAL_CONFIG_INITIALIZER \
  { sizeof(shoal_config), SHOAL_CONFIG_MAGIC, SHOAL_VERSION, 0, NULL, NULL }

/* Options of calls that override those of the communicator. Initialise with SHOAL_CALL_OPTIONS_INITIALIZER, then change
 * fields. */
typedef struct shoal_call_options {
  size_t size_bytes;
  uint32_t magic;
  int64_t timeout_ms;    /* deadline of each call, in milliseconds; 0: that of the communicator */
  const char* algorithm; /* force this one, the same on all ranks; NULL or "": let shoal choose. Ignored by send and recv */
} shoal_call_options;
#define SHOAL_CALL_OPTIONS_INITIALIZER \
  { sizeof(shoal_call_options), SHOAL_CONFIG_MAGIC, 0, NULL }

/* A dictionary that all ranks of a job share, supplied by the program. It is used only while a communicator is being created,
 * by the thread that creates it. The functions return SHOAL_OK, or another status, with which the creation then fails. */
typedef struct shoal_store {
  /* Passed to both functions. */
  void* context;
  /* Makes `key` visible to every rank. A key is set once. The value may hold any bytes. */
  shoal_status (*set)(void* context, const char* key, const void* value, size_t value_bytes);
  /* Waits until `key` exists, for at most `timeout_ms` milliseconds (then: SHOAL_TIMEOUT). Writes the size of its value to
   * *value_bytes, and the value to `value` if it fits into `capacity_bytes`; if it does not fit, shoal calls the function again
   * with a larger buffer. */
  shoal_status (*get)(void* context, const char* key, int64_t timeout_ms, void* value, size_t capacity_bytes,
                      size_t* value_bytes);
} shoal_store;

/* SHOAL_VERSION of the library in use. Never fails. */
int shoal_version(void);

/* The name of a status, for example "peer_failed"; "?" for an unknown one. The string is static. */
const char* shoal_status_string(shoal_status status);

/* The message of the last call that failed in this thread: what failed, which peer or argument, and the error text of the
 * system. "" if no call has failed. Valid until the next failure in this thread; truncated to 2047 bytes. */
const char* shoal_last_error_message(void);

/* Bytes of one element; 0 for an unknown type. */
size_t shoal_data_type_size(shoal_data_type type);

/* Memory for the buffers of calls: ranks of the same host read it directly, without a copy. At least `bytes` bytes, zero,
 * page-aligned; otherwise ordinary memory, for any communicator of the process. Errors: SHOAL_SYSTEM_ERROR where the process
 * has no room left, SHOAL_UNSUPPORTED where the system has no such memory. */
shoal_status shoal_mem_alloc(size_t bytes, void** memory);
/* Frees memory of shoal_mem_alloc; no call in flight may use it. NULL is allowed; any other pointer that shoal_mem_alloc did
 * not return is SHOAL_INVALID_ARGUMENT. */
shoal_status shoal_mem_free(void* memory);

/* Joins the job described by the environment of `shoal run`, mpirun, torchrun or srun; without a launcher, a job of one rank.
 * Collective: every rank calls it. `config` may be NULL. On failure *comm is NULL.
 * Errors: invalid_argument (config), not_found (no such algorithm), timeout (the message names the ranks that did not join),
 * system_error, unsupported. */
shoal_status shoal_comm_create(const shoal_config* config, shoal_comm_t* comm);

/* Joins through `store` as `rank` of 0 .. size - 1. `store` is not used after the return. Collective: every rank calls it.
 * `config` may be NULL. On failure *comm is NULL. Errors: as shoal_comm_create, and those of the store. */
shoal_status shoal_comm_create_with_store(const shoal_store* store, int rank, int size, const shoal_config* config,
                                          shoal_comm_t* comm);

/* Makes a communicator of each set of ranks that name the same `color`, ordered by `key`, then by rank in `comm`; *group is
 * NULL for a negative color. Collective over `comm`. A group shares links and threads with `comm`; the two may be destroyed in
 * any order. An error closes only the communicator that it happens in. On failure *group is NULL. */
shoal_status shoal_comm_split(shoal_comm_t comm, int color, int key, shoal_comm_t* group);

/* Makes a communicator of the `count` ranks of `comm` in `ranks`, in the order of their new ranks. Only these ranks call it,
 * all with the same list; no rank waits for another. On failure *group is NULL. */
shoal_status shoal_comm_group(shoal_comm_t comm, const int* ranks, size_t count, shoal_comm_t* group);

/* After a failure, makes a communicator of the surviving ranks: the ranks of `comm`, in their order, except those whose
 * processes have died or left the job, and the `count` ranks in `without` (the same on all ranks; may be NULL where count is
 * 0). Collective over the surviving ranks, also where `comm` is closed. `timeout_ms`: 0 for that of `comm`. On failure *left is
 * NULL; the message of SHOAL_TIMEOUT names the ranks that did not call it. */
shoal_status shoal_comm_shrink(shoal_comm_t comm, const int* without, size_t count, int64_t timeout_ms, shoal_comm_t* left);

/* Fails the calls in flight with SHOAL_ABORTED, notifies the other ranks and releases all resources. Works of the communicator
 * stay valid until they are freed. NULL is ignored. */
void shoal_comm_destroy(shoal_comm_t comm);

/* Closes the communicator here and on every other rank: calls in flight and later ones fail with SHOAL_ABORTED and `reason`
 * (may be NULL). The handle must still be destroyed. */
shoal_status shoal_comm_abort(shoal_comm_t comm, const char* reason);

/* SHOAL_OK, or why the communicator is closed. */
shoal_status shoal_comm_status(shoal_comm_t comm);

/* The position of this process in the communicator, from 0. */
shoal_status shoal_comm_rank(shoal_comm_t comm, int* rank);

/* The number of ranks. */
shoal_status shoal_comm_size(shoal_comm_t comm, int* size);

/* Collectives. `count` is in elements; 0 is valid. Buffers need no alignment beyond that of their type.
 *
 * Those without _async return when the result is available. Those with _async return at once: buffers must stay valid and
 * unchanged until the Work ends, and *work must be freed; many may be in flight. On failure of the call itself *work is NULL.
 *
 * Errors: invalid_argument (nothing was started); mismatch, timeout, peer_failed, aborted (the communicator is closed). */

/* Sets the options of all later calls of this thread, on any communicator; NULL: the options of each communicator apply.
 * options->algorithm must stay valid until the options are set again. A call fails with SHOAL_NOT_FOUND where the algorithm
 * does not exist, and with SHOAL_UNSUPPORTED where it cannot serve the call. Errors: invalid_argument (nothing has changed),
 * unsupported (`options` is of a later version). */
shoal_status shoal_set_call_options(const shoal_call_options* options);

/* output[i] = op over all ranks of input[i], for i < count. `output` may be equal to `input`, but not overlap it otherwise. */
shoal_status shoal_all_reduce(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                              shoal_reduce_op op);
shoal_status shoal_all_reduce_async(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                    shoal_reduce_op op, shoal_work_t* work);

/* buffer[i] = buffer[i] of rank `root`, for i < count. */
shoal_status shoal_broadcast(shoal_comm_t comm, void* buffer, size_t count, shoal_data_type type, int root);
shoal_status shoal_broadcast_async(shoal_comm_t comm, void* buffer, size_t count, shoal_data_type type, int root,
                                   shoal_work_t* work);

/* output[r * count + i] = input[i] of rank r, for i < count and every rank r: `output` holds size * count elements. `input` may
 * be this rank's place in `output`, but not overlap it otherwise. */
shoal_status shoal_all_gather(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type);
shoal_status shoal_all_gather_async(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                    shoal_work_t* work);

/* Shares of a message lie back to back in rank order. `counts` holds one number for each rank, the same on every rank, and is
 * not used after the call. */

/* output[i] = op over all ranks of input[rank * count + i], for i < count: `input` holds size * count elements. `output` may be
 * this rank's place in `input`, but not overlap it otherwise. _v: shares of counts[r] elements for rank r, back to back. */
shoal_status shoal_reduce_scatter(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                  shoal_reduce_op op);
shoal_status shoal_reduce_scatter_async(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                        shoal_reduce_op op, shoal_work_t* work);
shoal_status shoal_reduce_scatter_v(shoal_comm_t comm, const void* input, void* output, const size_t* counts,
                                    shoal_data_type type, shoal_reduce_op op);
shoal_status shoal_reduce_scatter_v_async(shoal_comm_t comm, const void* input, void* output, const size_t* counts,
                                          shoal_data_type type, shoal_reduce_op op, shoal_work_t* work);

/* As shoal_all_gather with counts[r] elements of rank r: `input` holds counts[rank] elements, `output` all of them. */
shoal_status shoal_all_gather_v(shoal_comm_t comm, const void* input, void* output, const size_t* counts, shoal_data_type type);
shoal_status shoal_all_gather_v_async(shoal_comm_t comm, const void* input, void* output, const size_t* counts,
                                      shoal_data_type type, shoal_work_t* work);

/* output[i] = op over all ranks of input[i], for i < count, on rank `root`; elsewhere `output` is not used and may be NULL.
 * `output` may be equal to `input`, but not overlap it otherwise. */
shoal_status shoal_reduce(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                          shoal_reduce_op op, int root);
shoal_status shoal_reduce_async(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                shoal_reduce_op op, int root, shoal_work_t* work);

/* output[r * count + i] = input[i] of rank r, on rank `root`; elsewhere `output` is not used and may be NULL. The root's
 * `input` may be its place in `output`, but not overlap it otherwise. _v: counts[r] elements of rank r. */
shoal_status shoal_gather(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type, int root);
shoal_status shoal_gather_async(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                int root, shoal_work_t* work);
shoal_status shoal_gather_v(shoal_comm_t comm, const void* input, void* output, const size_t* counts, shoal_data_type type,
                            int root);
shoal_status shoal_gather_v_async(shoal_comm_t comm, const void* input, void* output, const size_t* counts,
                                  shoal_data_type type, int root, shoal_work_t* work);

/* output[i] = input[rank * count + i] of rank `root`; elsewhere `input` is not used and may be NULL. The root's `output` may be
 * its place in `input`, but not overlap it otherwise. _v: counts[r] elements for rank r. */
shoal_status shoal_scatter(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type, int root);
shoal_status shoal_scatter_async(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                 int root, shoal_work_t* work);
shoal_status shoal_scatter_v(shoal_comm_t comm, const void* input, void* output, const size_t* counts, shoal_data_type type,
                             int root);
shoal_status shoal_scatter_v_async(shoal_comm_t comm, const void* input, void* output, const size_t* counts,
                                   shoal_data_type type, int root, shoal_work_t* work);

/* output[r * count + i] = input[rank * count + i] of rank r, for every rank r: both hold size * count elements, and do not
 * overlap. _v: send_counts[r] elements for rank r and receive_counts[r] from rank r; send_counts[b] of rank a must equal
 * receive_counts[a] of rank b. */
shoal_status shoal_all_to_all(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type);
shoal_status shoal_all_to_all_async(shoal_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                    shoal_work_t* work);
shoal_status shoal_all_to_all_v(shoal_comm_t comm, const void* input, const size_t* send_counts, void* output,
                                const size_t* receive_counts, shoal_data_type type);
shoal_status shoal_all_to_all_v_async(shoal_comm_t comm, const void* input, const size_t* send_counts, void* output,
                                      const size_t* receive_counts, shoal_data_type type, shoal_work_t* work);

/* Completes when every rank has entered it. */
shoal_status shoal_barrier(shoal_comm_t comm);
shoal_status shoal_barrier_async(shoal_comm_t comm, shoal_work_t* work);

/* Messages between two ranks, independent of the collectives. Messages of one sender, receiver and tag are received in the
 * order in which they were sent. Type and count of the receive must be those of the send, else SHOAL_MISMATCH at both ends.
 * `peer` of a receive may be SHOAL_ANY_SOURCE: shoal_work_source() returns the sender. */
#define SHOAL_ANY_SOURCE (-1)
shoal_status shoal_send(shoal_comm_t comm, const void* buffer, size_t count, shoal_data_type type, int peer, int tag);
shoal_status shoal_send_async(shoal_comm_t comm, const void* buffer, size_t count, shoal_data_type type, int peer, int tag,
                              shoal_work_t* work);
shoal_status shoal_recv(shoal_comm_t comm, void* buffer, size_t count, shoal_data_type type, int peer, int tag);
shoal_status shoal_recv_async(shoal_comm_t comm, void* buffer, size_t count, shoal_data_type type, int peer, int tag,
                              shoal_work_t* work);

/* Calls that this thread makes between the two start together in shoal_group_end: ranks that exchange data by blocking sends
 * and receives do not deadlock, and small messages share packets. Blocking calls in between return at once; their results are
 * available when shoal_group_end returns, with the first error among them. Pairs may be nested; the calls start at the end of
 * the outermost pair. */
void shoal_group_begin(void);
shoal_status shoal_group_end(void);

/* Sets *source to the rank that sent the message of a successful receive, else to -1. */
shoal_status shoal_work_source(shoal_work_t work, int* source);

/* Waits until the operation has ended and returns its outcome. The buffers belong to the caller again. May be called
 * repeatedly. */
shoal_status shoal_work_wait(shoal_work_t work);

/* As shoal_work_wait, but returns SHOAL_TIMEOUT after `timeout_ms` milliseconds; the operation continues. */
shoal_status shoal_work_wait_for(shoal_work_t work, int64_t timeout_ms);

/* Sets *completed to 1 where the operation has ended, else to 0; never blocks. Returns the outcome of an operation that has
 * ended, SHOAL_OK before. */
shoal_status shoal_work_test(shoal_work_t work, int* completed);

/* Frees the handle. An operation in flight continues; its buffers must stay valid and unchanged until it ends. NULL is
 * ignored. */
void shoal_work_free(shoal_work_t work);

#ifdef __cplusplus
}
#endif

#endif /* SHOAL_SHOAL_H_ */
