// The key of this process's job, from its user or launcher.
#pragma once

#include <optional>
#include <string>

#include <shoal/status.h>

#include "src/trust/proof.h"

namespace shoal {

/// The key by which the ranks of a job authenticate to each other.
struct JobKey {
  Key key;              ///< the same on every rank; derived from an empty text if none is set
  bool secret = false;  ///< set by the user or the launcher, so other users cannot know it
  bool told = false;    ///< the launcher's daemons have transmitted it, unencrypted between hosts
};

/// The text of SHOAL_JOB_KEY, or of the file that SHOAL_JOB_KEY_FILE names without the line feed at its end; nothing if neither
/// is set. Errors: invalid_argument where both are set, where the text is shorter than kShortestKey characters, or where every
/// user of the host may access the file; system_error where it cannot be read. No message contains the key.
Result<std::optional<std::string>> job_key_text();
inline constexpr std::size_t kShortestKey = 16;

/// The key for that text. Errors as above.
Result<JobKey> given_job_key();

/// The key of given_job_key(). If there is no text: the key that the launcher gave to this process when it created a
/// communicator, so that groups that start through a user's store authenticate with it, too. Errors as above. Any thread.
Result<JobKey> job_key();
void remember_job_key(const JobKey& key);

}  // namespace shoal
