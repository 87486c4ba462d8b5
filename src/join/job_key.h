// The key of this process's job, as its user or launcher has given it.
#pragma once

#include <optional>
#include <string>

#include <shoal/status.h>

#include "src/trust/proof.h"

namespace shoal {

/// What the ranks of a job prove to each other that they hold.
struct JobKey {
  Key key;              ///< the same on every rank; derived from nothing where none was given
  bool secret = false;  ///< somebody gave one: strangers cannot know it
  bool told = false;    ///< the launcher's daemons have carried it, unencrypted where they are on several hosts
};

/// The text of SHOAL_JOB_KEY, or of the file that SHOAL_JOB_KEY_FILE names without the line feed at its end; nothing where
/// neither is set. Errors: invalid_argument where both are set, where the text is shorter than kShortestKey characters, or
/// where users of no concern may read the file; system_error where it cannot be read. No message contains the key.
Result<std::optional<std::string>> job_key_text();
inline constexpr std::size_t kShortestKey = 16;

/// The key for that text. Errors as above.
Result<JobKey> given_job_key();

/// That, or where there is no text the key that this process has got from its launcher while it made a communicator: groups
/// that meet at a store of the user's prove themselves by it, too. Errors as above. Any thread.
Result<JobKey> job_key();
void remember_job_key(const JobKey& key);

}  // namespace shoal
