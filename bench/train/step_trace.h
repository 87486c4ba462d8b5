// Records the activities of a rank during one step.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <shoal/trace.h>

#include "bench/train/comm_clock.h"
#include "bench/train/models/model.h"

namespace shoal::train {

/// An activity with a duration.
struct TraceEvent {
  using Time = std::chrono::steady_clock::time_point;

  /// "load", "forward", "backward", "wait", "update" on the training thread; "gradients", "blocking": an operation while it
  /// is in flight; "node reduce", "wire", "node gather": from the first to the last tile of a stage of one of shoal's calls.
  std::string kind;
  std::string name;
  Time begin;
  Time end;
  nlohmann::json details = nullptr;  ///< an object, or null
};

/// The unit of time in traces.
double microseconds(std::chrono::steady_clock::duration time);

/// Records one step of training, using the model's announcements and hooks on its gradients. Thread rule: one thread, but
/// communicated() may be called from any.
class StepTrace {
 public:
  /// `model` must outlive this object, which observes the model as long as it exists.
  explicit StepTrace(models::ImageClassifier& model);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  /// The step begins; the activity of the training thread is `kind`.
  void begin(const std::string& kind);
  /// The next activity is `kind`.
  void next(const std::string& kind, const std::string& name = {});
  /// The step has ended. Operations that began in it are still recorded.
  void end();
  /// Adds shoal's recording of the calls of this process (see <shoal/trace.h>).
  void add_stages(const std::vector<StageEvent>& pieces);
  /// Adds an operation that has ended.
  void communicated(const CommClock::Operation& operation);

  /// The activities during the step, with the whole of the operations that were in flight in it. Operations on gradients, and
  /// their stages, are named by the number of their bucket, in the order in which backward fills them: "bucket 3, 512 KiB".
  [[nodiscard]] std::vector<TraceEvent> events();

 private:
  void close();
  [[nodiscard]] std::map<const void*, std::size_t> bucket_numbers() const;

  models::ImageClassifier& model_;
  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
  std::size_t gradients_ = 0;  // computed in this step
  std::vector<TraceEvent> events_;
  TraceEvent current_;
  TraceEvent::Time begin_;
  TraceEvent::Time end_;
  bool recording_ = false;
  std::mutex mutex_;
  std::vector<CommClock::Operation> operations_;
  std::vector<std::pair<TraceEvent, std::uint64_t>> stages_;  // with shoal's numbers of their calls
  const std::int32_t training_thread_;
};

}  // namespace shoal::train
