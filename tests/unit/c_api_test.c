/* The C API from C99: one rank, every function, and bad input. */
#include <shoal/shoal.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      fprintf(stderr, "  last error: %s\n", shoal_last_error_message());            \
      ++failures;                                                                   \
    }                                                                               \
  } while (0)

/* The call fails with `expected`, and the message mentions `fact`. */
#define CHECK_FAILS(call, expected, fact)                      \
  do {                                                         \
    CHECK((call) == (expected));                               \
    CHECK(strstr(shoal_last_error_message(), (fact)) != NULL); \
  } while (0)

/* The same with two facts. */
#define CHECK_FAILS_BY(call, expected, fact, other)             \
  do {                                                          \
    CHECK_FAILS(call, expected, fact);                          \
    CHECK(strstr(shoal_last_error_message(), (other)) != NULL); \
  } while (0)

/* The last error without its prefix, the name of the function. */
static const char* message_without_prefix(void) {
  const char* message = shoal_last_error_message();
  const char* colon = strstr(message, ": ");
  return colon != NULL ? colon : message;
}

/* The call fails, and the message names the argument that is NULL. */
#define CHECK_NULL(call, name)                               \
  do {                                                       \
    CHECK((call) == SHOAL_INVALID_ARGUMENT);                 \
    CHECK(strstr(message_without_prefix(), (name)) != NULL); \
    CHECK(strstr(message_without_prefix(), "NULL") != NULL); \
  } while (0)

static void check_constants(void) {
  CHECK(shoal_version() == SHOAL_VERSION);
  CHECK(strcmp(shoal_status_string(SHOAL_OK), "ok") == 0);
  CHECK(strcmp(shoal_status_string(SHOAL_PEER_FAILED), "peer_failed") == 0);
  CHECK(strcmp(shoal_status_string(-1), "?") == 0);
  CHECK(strcmp(shoal_status_string(1000), "?") == 0);
  CHECK(shoal_data_type_size(SHOAL_FLOAT64) == 8);
  CHECK(shoal_data_type_size(SHOAL_BFLOAT16) == 2);
  CHECK(shoal_data_type_size(SHOAL_FLOAT8_E4M3FN) == 1);
  CHECK(shoal_data_type_size(SHOAL_FLOAT8_E5M2) == 1);
  CHECK(shoal_data_type_size(14) == 0);
  CHECK(shoal_data_type_size(256) == 0);
  CHECK(shoal_data_type_size(-1) == 0);
  CHECK(strcmp(shoal_last_error_message(), "") == 0);
}

static void check_config(void) {
  shoal_comm_t comm = (shoal_comm_t)&failures; /* anything but NULL */
  shoal_config config = SHOAL_CONFIG_INITIALIZER;
  shoal_config zeros;
  memset(&zeros, 0, sizeof zeros);

  CHECK_NULL(shoal_comm_create(NULL, NULL), "comm");
  CHECK_FAILS(shoal_comm_create(&zeros, &comm), SHOAL_INVALID_ARGUMENT, "SHOAL_CONFIG_INITIALIZER");
  CHECK(comm == NULL);
  config.size_bytes += 8;
  CHECK_FAILS(shoal_comm_create(&config, &comm), SHOAL_UNSUPPORTED, "config");
  config.size_bytes = 16;
  CHECK_FAILS(shoal_comm_create(&config, &comm), SHOAL_INVALID_ARGUMENT, "size_bytes");
  config.size_bytes = sizeof config;
  config.timeout_ms = -1;
  CHECK_FAILS_BY(shoal_comm_create(&config, &comm), SHOAL_INVALID_ARGUMENT, "timeout_ms", "-1");
  config.timeout_ms = 0;
  config.algorithm = "no_such_algorithm";
  CHECK_FAILS(shoal_comm_create(&config, &comm), SHOAL_NOT_FOUND, "no_such_algorithm");
  CHECK(comm == NULL);
  config.algorithm = NULL;
  config.transports = "no_such_transport";
  CHECK_FAILS(shoal_comm_create(&config, &comm), SHOAL_INVALID_ARGUMENT, "no_such_transport");
  CHECK(comm == NULL);
}

static shoal_status set_nothing(void* context, const char* key, const void* value, size_t value_bytes) {
  (void)context, (void)key, (void)value, (void)value_bytes;
  return SHOAL_OK;
}

static shoal_status get_nothing(void* context, const char* key, int64_t timeout_ms, void* value, size_t capacity_bytes,
                                size_t* value_bytes) {
  (void)context, (void)key, (void)timeout_ms, (void)value, (void)capacity_bytes, (void)value_bytes;
  return SHOAL_NOT_FOUND;
}

static void check_store(void) {
  shoal_comm_t comm = NULL;
  shoal_store store = {NULL, set_nothing, get_nothing};
  shoal_store empty = {NULL, NULL, NULL};
  CHECK_NULL(shoal_comm_create_with_store(NULL, 0, 1, NULL, &comm), "store");
  CHECK_FAILS_BY(shoal_comm_create_with_store(&empty, 0, 1, NULL, &comm), SHOAL_INVALID_ARGUMENT, "set", "get");
  CHECK_FAILS(shoal_comm_create_with_store(&store, 1, 1, NULL, &comm), SHOAL_INVALID_ARGUMENT, "rank 1");
  CHECK_FAILS(shoal_comm_create_with_store(&store, -1, 1, NULL, &comm), SHOAL_INVALID_ARGUMENT, "rank -1");
  CHECK_FAILS(shoal_comm_create_with_store(&store, 0, 0, NULL, &comm), SHOAL_INVALID_ARGUMENT, "rank 0");
  CHECK_FAILS_BY(shoal_comm_create_with_store(&store, 0, 2, NULL, &comm), SHOAL_NOT_FOUND, "store", "get");
  CHECK(comm == NULL);
}

static void check_null_handles(void) {
  int number = 0;
  shoal_comm_t comm = NULL;
  shoal_work_t work = NULL;
  float value = 1;
  size_t one = 1;
  CHECK_FAILS_BY(shoal_comm_rank(NULL, &number), SHOAL_INVALID_ARGUMENT, "shoal_comm_rank", "comm");
  CHECK_NULL(shoal_comm_rank(NULL, &number), "comm");
  CHECK_NULL(shoal_comm_size(NULL, &number), "comm");
  CHECK_NULL(shoal_comm_status(NULL), "comm");
  CHECK_NULL(shoal_comm_abort(NULL, "why"), "comm");
  CHECK_NULL(shoal_all_reduce(NULL, &value, &value, 1, SHOAL_FLOAT32, SHOAL_SUM), "comm");
  CHECK_NULL(shoal_broadcast(NULL, &value, 1, SHOAL_FLOAT32, 0), "comm");
  CHECK_NULL(shoal_all_gather(NULL, &value, &value, 1, SHOAL_FLOAT32), "comm");
  CHECK_NULL(shoal_all_gather_v(NULL, &value, &value, &one, SHOAL_FLOAT32), "comm");
  CHECK_NULL(shoal_reduce_scatter(NULL, &value, &value, 1, SHOAL_FLOAT32, SHOAL_SUM), "comm");
  CHECK_NULL(shoal_reduce(NULL, &value, &value, 1, SHOAL_FLOAT32, SHOAL_SUM, 0), "comm");
  CHECK_NULL(shoal_gather(NULL, &value, &value, 1, SHOAL_FLOAT32, 0), "comm");
  CHECK_NULL(shoal_scatter(NULL, &value, &value, 1, SHOAL_FLOAT32, 0), "comm");
  CHECK_NULL(shoal_all_to_all(NULL, &value, &value, 1, SHOAL_FLOAT32), "comm");
  CHECK_NULL(shoal_barrier(NULL), "comm");
  CHECK_NULL(shoal_barrier_async(NULL, &work), "comm");
  CHECK_NULL(shoal_comm_split(NULL, 0, 0, &comm), "comm");
  CHECK_NULL(shoal_comm_group(NULL, &number, 1, &comm), "comm");
  CHECK_NULL(shoal_send(NULL, &value, 1, SHOAL_FLOAT32, 0, 0), "comm");
  CHECK_NULL(shoal_recv(NULL, &value, 1, SHOAL_FLOAT32, 0, 0), "comm");
  CHECK_NULL(shoal_work_source(NULL, &number), "work");
  CHECK_FAILS(shoal_group_end(), SHOAL_INVALID_ARGUMENT, "group_begin");
  CHECK_NULL(shoal_work_wait(NULL), "work");
  CHECK_NULL(shoal_work_wait_for(NULL, 1), "work");
  CHECK_NULL(shoal_work_test(NULL, &number), "work");
  shoal_work_free(NULL);
  shoal_comm_destroy(NULL);
}

static void check_bad_calls(shoal_comm_t comm) {
  float value = 1;
  float values[4] = {1, 2, 3, 4};
  size_t huge = (size_t)-1;
  shoal_work_t work = (shoal_work_t)&failures;
  CHECK_NULL(shoal_comm_rank(comm, NULL), "rank");
  CHECK_FAILS(shoal_all_reduce(comm, NULL, &value, 1, SHOAL_FLOAT32, SHOAL_SUM), SHOAL_INVALID_ARGUMENT, "null");
  CHECK_FAILS(shoal_all_reduce(comm, &value, NULL, 1, SHOAL_FLOAT32, SHOAL_SUM), SHOAL_INVALID_ARGUMENT, "null");
  CHECK_FAILS(shoal_all_reduce(comm, &value, &value, (size_t)-1, SHOAL_FLOAT32, SHOAL_SUM), SHOAL_INVALID_ARGUMENT, "count");
  CHECK_FAILS_BY(shoal_all_reduce(comm, &value, &value, 1, 14, SHOAL_SUM), SHOAL_INVALID_ARGUMENT, "14", "SHOAL_FLOAT32");
  CHECK_FAILS_BY(shoal_all_reduce(comm, &value, &value, 1, 256, SHOAL_SUM), SHOAL_INVALID_ARGUMENT, "256", "SHOAL_FLOAT32");
  CHECK_FAILS_BY(shoal_all_reduce(comm, &value, &value, 1, SHOAL_FLOAT32, -1), SHOAL_INVALID_ARGUMENT, "-1", "SHOAL_SUM");
  CHECK_FAILS(shoal_all_reduce(comm, &value, &value, 1, SHOAL_FLOAT32, SHOAL_BXOR), SHOAL_INVALID_ARGUMENT, "bxor");
  CHECK_NULL(shoal_all_reduce_async(comm, &value, &value, 1, SHOAL_FLOAT32, SHOAL_SUM, NULL), "work");
  CHECK_FAILS(shoal_all_reduce_async(comm, NULL, &value, 1, SHOAL_FLOAT32, SHOAL_SUM, &work), SHOAL_INVALID_ARGUMENT, "null");
  CHECK(work == NULL);
  CHECK_FAILS(shoal_broadcast(comm, &value, 1, SHOAL_FLOAT32, 1), SHOAL_INVALID_ARGUMENT, "root");
  CHECK_FAILS(shoal_broadcast(comm, NULL, 1, SHOAL_FLOAT32, 0), SHOAL_INVALID_ARGUMENT, "null");
  CHECK_FAILS(shoal_all_gather(comm, &value, NULL, 1, SHOAL_FLOAT32), SHOAL_INVALID_ARGUMENT, "null");
  CHECK_NULL(shoal_all_gather_v(comm, &value, values, NULL, SHOAL_FLOAT32), "counts");
  CHECK_FAILS(shoal_reduce_scatter(comm, values, NULL, 1, SHOAL_FLOAT32, SHOAL_SUM), SHOAL_INVALID_ARGUMENT, "null");
  CHECK_FAILS(shoal_reduce_scatter(comm, values, &value, 1, SHOAL_FLOAT32, SHOAL_BAND), SHOAL_INVALID_ARGUMENT, "band");
  CHECK_FAILS(shoal_reduce_scatter_v(comm, values, &value, &huge, SHOAL_INT8, SHOAL_SUM), SHOAL_INVALID_ARGUMENT, "count");
  CHECK_FAILS(shoal_reduce(comm, values, &value, 1, SHOAL_FLOAT32, SHOAL_SUM, -1), SHOAL_INVALID_ARGUMENT, "root -1");
  CHECK_FAILS(shoal_gather(comm, values, &value, 1, SHOAL_FLOAT32, 1), SHOAL_INVALID_ARGUMENT, "root 1");
  CHECK_FAILS(shoal_scatter(comm, values, &value, 1, SHOAL_FLOAT32, 1), SHOAL_INVALID_ARGUMENT, "root 1");
  CHECK_FAILS_BY(shoal_scatter_async(comm, values, &value, 1, 77, 0, &work), SHOAL_INVALID_ARGUMENT, "77", "SHOAL_FLOAT32");
  CHECK_FAILS_BY(shoal_all_to_all(comm, values, values, 1, SHOAL_FLOAT32), SHOAL_INVALID_ARGUMENT, "overlap", "all_to_all");
  CHECK_FAILS(shoal_all_to_all(comm, values, values + 1, 2, SHOAL_FLOAT32), SHOAL_INVALID_ARGUMENT, "overlap");
  CHECK_NULL(shoal_all_to_all_v(comm, values, &huge, &value, NULL, SHOAL_INT8), "receive_counts");
  CHECK(shoal_comm_status(comm) == SHOAL_OK); /* bad arguments do not close the communicator */
}

static void check_groups_and_messages(shoal_comm_t comm) {
  const int ranks[] = {0, 0};
  float sent = 3;
  float got = 0;
  int source = -2;
  shoal_work_t work = NULL;
  shoal_comm_t group = comm;
  CHECK(shoal_comm_split(comm, -1, 0, &group) == SHOAL_OK);
  CHECK(group == NULL);
  CHECK_FAILS(shoal_comm_group(comm, ranks, 2, &group), SHOAL_INVALID_ARGUMENT, "twice");
  CHECK(shoal_comm_group(comm, ranks, 1, &group) == SHOAL_OK);
  CHECK_FAILS(shoal_send(group, &sent, 1, SHOAL_FLOAT32, 1, 0), SHOAL_INVALID_ARGUMENT, "peer 1");
  CHECK(shoal_recv_async(group, &got, 1, SHOAL_FLOAT32, SHOAL_ANY_SOURCE, 4, &work) == SHOAL_OK);
  CHECK(shoal_send(group, &sent, 1, SHOAL_FLOAT32, 0, 4) == SHOAL_OK);
  CHECK(shoal_work_wait(work) == SHOAL_OK);
  CHECK(shoal_work_source(work, &source) == SHOAL_OK);
  CHECK(got == 3 && source == 0);
  shoal_work_free(work);
  got = 0;
  shoal_group_begin();
  CHECK(shoal_send(group, &sent, 1, SHOAL_FLOAT32, 0, 0) == SHOAL_OK);
  CHECK(shoal_recv(group, &got, 1, SHOAL_FLOAT32, 0, 0) == SHOAL_OK);
  CHECK(shoal_group_end() == SHOAL_OK);
  CHECK(got == 3);
  shoal_comm_destroy(group);
}

static void check_good_calls(shoal_comm_t comm) {
  int number = -1;
  int completed = -1;
  float input[3] = {1, 2, 3};
  float output[3] = {0, 0, 0};
  shoal_work_t work = NULL;

  CHECK(shoal_comm_rank(comm, &number) == SHOAL_OK && number == 0);
  CHECK(shoal_comm_size(comm, &number) == SHOAL_OK && number == 1);
  CHECK(shoal_all_reduce(comm, input, output, 3, SHOAL_FLOAT32, SHOAL_SUM) == SHOAL_OK);
  CHECK(output[0] == 1 && output[1] == 2 && output[2] == 3);
  CHECK(shoal_all_reduce(comm, input, input, 3, SHOAL_FLOAT32, SHOAL_AVG) == SHOAL_OK);
  CHECK(input[0] == 1 && input[1] == 2 && input[2] == 3);
  CHECK(shoal_all_reduce(comm, NULL, NULL, 0, SHOAL_FLOAT32, SHOAL_SUM) == SHOAL_OK);
  CHECK(shoal_broadcast(comm, input, 3, SHOAL_FLOAT32, 0) == SHOAL_OK);
  CHECK(input[0] == 1 && input[1] == 2 && input[2] == 3);
  memset(output, 0, sizeof output);
  CHECK(shoal_all_gather(comm, input, output, 3, SHOAL_FLOAT32) == SHOAL_OK);
  CHECK(output[0] == 1 && output[1] == 2 && output[2] == 3);
  CHECK(shoal_barrier(comm) == SHOAL_OK);

  memset(output, 0, sizeof output);
  CHECK(shoal_all_reduce_async(comm, input, output, 3, SHOAL_FLOAT32, SHOAL_MAX, &work) == SHOAL_OK);
  CHECK_FAILS_BY(shoal_work_wait_for(work, -5), SHOAL_INVALID_ARGUMENT, "timeout_ms", "-5");
  CHECK(shoal_work_wait_for(work, INT64_MAX) == SHOAL_OK);
  CHECK(shoal_work_test(work, &completed) == SHOAL_OK && completed == 1);
  CHECK(shoal_work_wait(work) == SHOAL_OK);
  CHECK(output[0] == 1 && output[1] == 2 && output[2] == 3);
  shoal_work_free(work);
}

/* With one rank, every collective copies its input to its output. */
static void check_one_rank(shoal_comm_t comm) {
  const float input[3] = {1, 2, 3};
  const size_t counts[1] = {3};
  float output[3];
  shoal_work_t work = NULL;
#define CHECK_COPIES(call)                                      \
  do {                                                          \
    memset(output, 0, sizeof output);                           \
    CHECK((call) == SHOAL_OK);                                  \
    if (work != NULL) CHECK(shoal_work_wait(work) == SHOAL_OK); \
    shoal_work_free(work);                                      \
    work = NULL;                                                \
    CHECK(output[0] == 1 && output[1] == 2 && output[2] == 3);  \
  } while (0)
  CHECK_COPIES(shoal_all_gather_v(comm, input, output, counts, SHOAL_FLOAT32));
  CHECK_COPIES(shoal_reduce_scatter(comm, input, output, 3, SHOAL_FLOAT32, SHOAL_AVG));
  CHECK_COPIES(shoal_reduce_scatter_v(comm, input, output, counts, SHOAL_FLOAT32, SHOAL_MAX));
  CHECK_COPIES(shoal_reduce(comm, input, output, 3, SHOAL_FLOAT32, SHOAL_SUM, 0));
  CHECK_COPIES(shoal_gather(comm, input, output, 3, SHOAL_FLOAT32, 0));
  CHECK_COPIES(shoal_gather_v(comm, input, output, counts, SHOAL_FLOAT32, 0));
  CHECK_COPIES(shoal_scatter(comm, input, output, 3, SHOAL_FLOAT32, 0));
  CHECK_COPIES(shoal_scatter_v(comm, input, output, counts, SHOAL_FLOAT32, 0));
  CHECK_COPIES(shoal_all_to_all(comm, input, output, 3, SHOAL_FLOAT32));
  CHECK_COPIES(shoal_all_to_all_v(comm, input, counts, output, counts, SHOAL_FLOAT32));
  CHECK_COPIES(shoal_all_gather_v_async(comm, input, output, counts, SHOAL_FLOAT32, &work));
  CHECK_COPIES(shoal_reduce_scatter_async(comm, input, output, 3, SHOAL_FLOAT32, SHOAL_SUM, &work));
  CHECK_COPIES(shoal_reduce_scatter_v_async(comm, input, output, counts, SHOAL_FLOAT32, SHOAL_SUM, &work));
  CHECK_COPIES(shoal_reduce_async(comm, input, output, 3, SHOAL_FLOAT32, SHOAL_SUM, 0, &work));
  CHECK_COPIES(shoal_gather_async(comm, input, output, 3, SHOAL_FLOAT32, 0, &work));
  CHECK_COPIES(shoal_gather_v_async(comm, input, output, counts, SHOAL_FLOAT32, 0, &work));
  CHECK_COPIES(shoal_scatter_async(comm, input, output, 3, SHOAL_FLOAT32, 0, &work));
  CHECK_COPIES(shoal_scatter_v_async(comm, input, output, counts, SHOAL_FLOAT32, 0, &work));
  CHECK_COPIES(shoal_all_to_all_async(comm, input, output, 3, SHOAL_FLOAT32, &work));
  CHECK_COPIES(shoal_all_to_all_v_async(comm, input, counts, output, counts, SHOAL_FLOAT32, &work));
}

/* Call options apply to this thread until they are set again. */
static void check_call_options(shoal_comm_t comm) {
  const float input[3] = {1, 2, 3};
  float output[3] = {0, 0, 0};
  shoal_call_options options = SHOAL_CALL_OPTIONS_INITIALIZER;
  shoal_work_t work = NULL;
  options.algorithm = "ring";
  CHECK(shoal_set_call_options(&options) == SHOAL_OK);
  CHECK(shoal_all_reduce(comm, input, output, 3, SHOAL_FLOAT32, SHOAL_SUM) == SHOAL_OK);
  CHECK(output[2] == 3);
  options.algorithm = "no_such";
  CHECK(shoal_set_call_options(&options) == SHOAL_OK);
  CHECK_FAILS(shoal_all_reduce(comm, input, output, 3, SHOAL_FLOAT32, SHOAL_SUM), SHOAL_NOT_FOUND, "no_such");
  CHECK_FAILS(shoal_reduce_async(comm, input, output, 3, SHOAL_FLOAT32, SHOAL_SUM, 0, &work), SHOAL_NOT_FOUND, "no_such");
  options.timeout_ms = -1;
  options.algorithm = NULL;
  CHECK_FAILS_BY(shoal_set_call_options(&options), SHOAL_INVALID_ARGUMENT, "timeout_ms", "-1");
  CHECK_FAILS(shoal_all_reduce(comm, input, output, 3, SHOAL_FLOAT32, SHOAL_SUM), SHOAL_NOT_FOUND, "no_such");
  options.timeout_ms = 50;
  options.size_bytes += 1;
  CHECK_FAILS(shoal_set_call_options(&options), SHOAL_UNSUPPORTED, "options");
  options.size_bytes = 1;
  CHECK_FAILS(shoal_set_call_options(&options), SHOAL_INVALID_ARGUMENT, "SHOAL_CALL_OPTIONS_INITIALIZER");
  CHECK(shoal_set_call_options(NULL) == SHOAL_OK);
  CHECK(shoal_all_reduce(comm, input, output, 3, SHOAL_FLOAT32, SHOAL_SUM) == SHOAL_OK);
}

/* No rank sends, so the deadline of the call expires before that of the communicator, which it closes. */
static void check_deadline_of_a_call(void) {
  shoal_config config = SHOAL_CONFIG_INITIALIZER;
  shoal_call_options options = SHOAL_CALL_OPTIONS_INITIALIZER;
  shoal_comm_t comm = NULL;
  float value = 0;
  config.timeout_ms = 600000;
  options.timeout_ms = 50;
  CHECK(shoal_comm_create(&config, &comm) == SHOAL_OK);
  CHECK(shoal_set_call_options(&options) == SHOAL_OK);
  CHECK_FAILS(shoal_recv(comm, &value, 1, SHOAL_FLOAT32, 0, 7), SHOAL_TIMEOUT, "recv");
  CHECK(shoal_set_call_options(NULL) == SHOAL_OK);
  shoal_comm_destroy(comm);
}

static void check_abort(shoal_comm_t comm) {
  float value = 1;
  shoal_work_t work = NULL;
  shoal_status started;
  CHECK(shoal_comm_abort(comm, "reason of the test") == SHOAL_OK);
  CHECK_FAILS(shoal_comm_status(comm), SHOAL_ABORTED, "reason of the test");
  CHECK_FAILS(shoal_all_reduce(comm, &value, &value, 1, SHOAL_FLOAT32, SHOAL_SUM), SHOAL_ABORTED, "reason of the test");
  started = shoal_barrier_async(comm, &work); /* either the call or its Work fails */
  CHECK(started == SHOAL_ABORTED || shoal_work_wait(work) == SHOAL_ABORTED);
  shoal_work_free(work);
}

int main(void) {
  shoal_comm_t comm = NULL;
  shoal_config config = SHOAL_CONFIG_INITIALIZER;
  config.timeout_ms = 20000;
  check_constants();
  check_null_handles();
  check_config();
  check_store();
  CHECK(shoal_comm_create(&config, &comm) == SHOAL_OK);
  if (comm != NULL) {
    check_good_calls(comm);
    check_one_rank(comm);
    check_groups_and_messages(comm);
    check_bad_calls(comm);
    check_call_options(comm);
    check_abort(comm);
    shoal_comm_destroy(comm);
  }
  check_deadline_of_a_call();
  if (failures == 0) printf("c_api: all checks passed\n");
  return failures == 0 ? 0 : 1;
}
