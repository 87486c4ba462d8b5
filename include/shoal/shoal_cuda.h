/* shoal for C: collectives on memory of CUDA devices, in the order of a CUDA stream. No header of CUDA is needed: a stream is
 * passed as the void* that a cudaStream_t is. The C++ interface, which describes each call in more detail, is <shoal/cuda.h>.
 *
 *   shoal_stream_comm_t comm;
 *   if (shoal_stream_comm_create(host_comm, NULL, &comm) != SHOAL_OK) fail(shoal_last_error_message());
 *   shoal_stream_all_reduce(comm, gradient, gradient, count, SHOAL_FLOAT32, SHOAL_SUM, stream, NULL);
 */
#ifndef SHOAL_SHOAL_CUDA_H_
#define SHOAL_SHOAL_CUDA_H_

#include <shoal/shoal.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A group of ranks, each on one CUDA device. */
typedef struct shoal_stream_comm* shoal_stream_comm_t;
/* One operation on a stream. */
typedef struct shoal_stream_work* shoal_stream_work_t;

/* SHOAL_OK if this process can use CUDA, else SHOAL_UNSUPPORTED; shoal_last_error_message() names what is missing. */
shoal_status shoal_cuda_available(void);

/* Initialise with SHOAL_STREAM_CONFIG_INITIALIZER; the first three fields belong to the library. Must be the same on all
 * ranks. */
typedef struct shoal_stream_config {
  size_t size_bytes;
  unsigned magic;
  unsigned version;
  size_t staging_bytes;     /* device memory that other ranks of the node read from; 0: SHOAL_CUDA_STAGING */
  int max_processors;       /* maximum number of SMs that kernels of the library occupy; 0: SHOAL_MAX_SMS */
  int kernels_run_together; /* 1: kernels of ranks that share a device run at the same time; 0: SHOAL_CUDA_TOGETHER */
} shoal_stream_config;
#define SHOAL_STREAM_CONFIG_MAGIC 0x53544d31u
#define SHOAL_STREAM_CONFIG_INITIALIZER \
  { sizeof(shoal_stream_config), SHOAL_STREAM_CONFIG_MAGIC, SHOAL_VERSION, 0, 0, 0 }

/* Collective over `host`, which must outlive *comm. Uses the current CUDA device. `config` may be NULL. On failure *comm is
 * NULL. */
shoal_status shoal_stream_comm_create(shoal_comm_t host, const shoal_stream_config* config, shoal_stream_comm_t* comm);
/* Waits for the calls in flight, and until the other ranks destroy the group too, at most the timeout of the `host`
 * communicator. NULL is ignored. */
void shoal_stream_comm_destroy(shoal_stream_comm_t comm);
/* Closes the group here and on every other rank with SHOAL_ABORTED and `reason` (may be NULL). */
shoal_status shoal_stream_comm_abort(shoal_stream_comm_t comm, const char* reason);
/* SHOAL_OK, or why the group is closed. */
shoal_status shoal_stream_comm_status(shoal_stream_comm_t comm);

/* Lets the ranks of the node read inputs directly from the allocation of `buffer`, until it is deregistered. Both are
 * collective and block the host. */
shoal_status shoal_stream_register_buffer(shoal_stream_comm_t comm, const void* buffer);
shoal_status shoal_stream_deregister_buffer(shoal_stream_comm_t comm, const void* buffer);

/* Collectives. Each does what the function without _stream does with host buffers (<shoal/shoal.h>), returns at once, and runs
 * in stream order: buffers belong to the call until the stream has passed it. `work` may be NULL; else *work must be freed, and
 * is NULL on failure of the call itself. Deadlines: shoal_set_call_options(). A stream that is being captured into a graph is
 * refused with SHOAL_UNSUPPORTED. */
shoal_status shoal_stream_all_reduce(shoal_stream_comm_t comm, const void* input, void* output, size_t count,
                                     shoal_data_type type, shoal_reduce_op op, void* stream, shoal_stream_work_t* work);
shoal_status shoal_stream_broadcast(shoal_stream_comm_t comm, void* buffer, size_t count, shoal_data_type type, int root,
                                    void* stream, shoal_stream_work_t* work);
shoal_status shoal_stream_all_gather(shoal_stream_comm_t comm, const void* input, void* output, size_t count,
                                     shoal_data_type type, void* stream, shoal_stream_work_t* work);
shoal_status shoal_stream_all_gather_v(shoal_stream_comm_t comm, const void* input, void* output, const size_t* counts,
                                       shoal_data_type type, void* stream, shoal_stream_work_t* work);
shoal_status shoal_stream_reduce_scatter(shoal_stream_comm_t comm, const void* input, void* output, size_t count,
                                         shoal_data_type type, shoal_reduce_op op, void* stream, shoal_stream_work_t* work);
shoal_status shoal_stream_reduce_scatter_v(shoal_stream_comm_t comm, const void* input, void* output, const size_t* counts,
                                           shoal_data_type type, shoal_reduce_op op, void* stream, shoal_stream_work_t* work);
shoal_status shoal_stream_reduce(shoal_stream_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                 shoal_reduce_op op, int root, void* stream, shoal_stream_work_t* work);
shoal_status shoal_stream_gather(shoal_stream_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                 int root, void* stream, shoal_stream_work_t* work);
shoal_status shoal_stream_gather_v(shoal_stream_comm_t comm, const void* input, void* output, const size_t* counts,
                                   shoal_data_type type, int root, void* stream, shoal_stream_work_t* work);
shoal_status shoal_stream_scatter(shoal_stream_comm_t comm, const void* input, void* output, size_t count, shoal_data_type type,
                                  int root, void* stream, shoal_stream_work_t* work);
shoal_status shoal_stream_scatter_v(shoal_stream_comm_t comm, const void* input, void* output, const size_t* counts,
                                    shoal_data_type type, int root, void* stream, shoal_stream_work_t* work);
shoal_status shoal_stream_all_to_all(shoal_stream_comm_t comm, const void* input, void* output, size_t count,
                                     shoal_data_type type, void* stream, shoal_stream_work_t* work);
shoal_status shoal_stream_all_to_all_v(shoal_stream_comm_t comm, const void* input, const size_t* send_counts, void* output,
                                       const size_t* receive_counts, shoal_data_type type, void* stream,
                                       shoal_stream_work_t* work);
shoal_status shoal_stream_barrier(shoal_stream_comm_t comm, void* stream, shoal_stream_work_t* work);

/* Messages between two ranks, matched by sender, receiver and tag, in the order of the calls. On one stream they run one after
 * the other like blocking calls; messages on up to 8 different streams do not wait for each other. A receive must name its
 * sender. */
shoal_status shoal_stream_send(shoal_stream_comm_t comm, const void* buffer, size_t count, shoal_data_type type, int peer,
                               int tag, void* stream, shoal_stream_work_t* work);
shoal_status shoal_stream_recv(shoal_stream_comm_t comm, void* buffer, size_t count, shoal_data_type type, int peer, int tag,
                               void* stream, shoal_stream_work_t* work);

/* One message of an exchange. */
typedef struct shoal_stream_message {
  int is_send;  /* 1: send, 0: receive */
  void* buffer; /* of a send: only read */
  size_t count;
  shoal_data_type type;
  int peer;
  int tag;
} shoal_stream_message;
/* Up to 32 messages that progress together: none of them has to end before another can start. */
shoal_status shoal_stream_exchange(shoal_stream_comm_t comm, const shoal_stream_message* messages, size_t count, void* stream,
                                   shoal_stream_work_t* work);

/* Blocks the host until the operation has ended; returns its outcome. */
shoal_status shoal_stream_work_wait(shoal_stream_work_t work);
/* Makes `stream` wait for the operation; the host does not wait. */
shoal_status shoal_stream_work_wait_on(shoal_stream_work_t work, void* stream);
/* Sets *completed to 1 where the operation has ended, else to 0; never blocks. Returns the outcome of one that has ended. */
shoal_status shoal_stream_work_test(shoal_stream_work_t work, int* completed);
/* Frees the handle; the operation continues. NULL is ignored. */
void shoal_stream_work_free(shoal_stream_work_t work);

#ifdef __cplusplus
}
#endif

#endif /* SHOAL_SHOAL_CUDA_H_ */
