/* shoal for C: collectives on memory of CUDA devices, in the order of a CUDA stream. No header of CUDA is needed: a stream is
 * passed as the void* that a cudaStream_t is. The C++ interface, which says more of what is behind each call, is
 * <shoal/cuda.h>.
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

/* SHOAL_OK where this process can use CUDA, else SHOAL_UNSUPPORTED, and shoal_last_error_message() says what is missing. */
shoal_status shoal_cuda_available(void);

/* Start from SHOAL_STREAM_CONFIG_INITIALIZER; the first three fields belong to the library. The same on all ranks. */
typedef struct shoal_stream_config {
  size_t size_bytes;
  unsigned magic;
  unsigned version;
  size_t staging_bytes;     /* device memory that other ranks of the node read from; 0: SHOAL_CUDA_STAGING */
  int max_processors;       /* SMs that kernels of the library occupy at most; 0: SHOAL_MAX_SMS */
  int kernels_run_together; /* 1: kernels of ranks that share a device run at the same time; 0: SHOAL_CUDA_TOGETHER */
} shoal_stream_config;
#define SHOAL_STREAM_CONFIG_MAGIC 0x53544d31u
#define SHOAL_STREAM_CONFIG_INITIALIZER \
  { sizeof(shoal_stream_config), SHOAL_STREAM_CONFIG_MAGIC, SHOAL_VERSION, 0, 0, 0 }

/* Collective over `host`, which must live longer. Uses the current CUDA device. `config` may be NULL. On failure *comm is
 * NULL. */
shoal_status shoal_stream_comm_create(shoal_comm_t host, const shoal_stream_config* config, shoal_stream_comm_t* comm);
/* Waits for what is in flight, and for the other ranks to come here, at most the timeout of the host's communicator. NULL is
 * ignored. */
void shoal_stream_comm_destroy(shoal_stream_comm_t comm);
/* Closes the group here and on every other rank with SHOAL_ABORTED and `reason` (may be NULL). */
shoal_status shoal_stream_comm_abort(shoal_stream_comm_t comm, const char* reason);
/* SHOAL_OK, or why the group is closed. */
shoal_status shoal_stream_comm_status(shoal_stream_comm_t comm);

/* Has the ranks of the node read inputs in the allocation of `buffer` where they lie, until it is taken back. Both are
 * collective and block the host. */
shoal_status shoal_stream_register_buffer(shoal_stream_comm_t comm, const void* buffer);
shoal_status shoal_stream_deregister_buffer(shoal_stream_comm_t comm, const void* buffer);

/* Collectives. Each does what the function without _stream does with buffers of the host (<shoal/shoal.h>), returns at once,
 * and is done in the order of `stream`: buffers belong to the call until the stream has come past it. `work` may be NULL; else
 * *work must be freed, and is NULL on failure of the call itself. Deadlines: shoal_set_call_options(). A stream that is
 * captured into a graph is refused with SHOAL_UNSUPPORTED. */
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

/* Messages between two ranks, matched by sender, receiver and tag, in the order of the calls. On one stream they follow each
 * other as blocking calls would; on up to 8 streams they do not wait for each other. The sender must be named. */
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
/* Up to 32 messages that go on together: one may wait for another. */
shoal_status shoal_stream_exchange(shoal_stream_comm_t comm, const shoal_stream_message* messages, size_t count, void* stream,
                                   shoal_stream_work_t* work);

/* Blocks the host until the operation has ended; its outcome. */
shoal_status shoal_stream_work_wait(shoal_stream_work_t work);
/* Makes `stream` wait for it; the host goes on at once. */
shoal_status shoal_stream_work_wait_on(shoal_stream_work_t work, void* stream);
/* Sets *completed to 1 where the operation has ended, else to 0; never blocks. Returns the outcome of one that has ended. */
shoal_status shoal_stream_work_test(shoal_stream_work_t work, int* completed);
/* Frees the handle; the operation goes on. NULL is ignored. */
void shoal_stream_work_free(shoal_stream_work_t work);

#ifdef __cplusplus
}
#endif

#endif /* SHOAL_SHOAL_CUDA_H_ */
