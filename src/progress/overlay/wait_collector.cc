#include "src/progress/overlay/wait_collector.h"

#include <algorithm>
#include <bit>

namespace shoal {

using std::chrono::milliseconds;

bool WaitCollector::set_slot(int rank, const std::optional<WaitSlot>& slot) {
  if (!slot) {
    slots_.erase(rank);
    return false;
  }
  WaitSlot& known = slots_[rank];
  const bool asks = slot->asked > known.asked;
  known = *slot;
  return asks;
}

const WaitSlot* WaitCollector::slot(int rank) const {
  const auto found = slots_.find(rank);
  return found == slots_.end() ? nullptr : &found->second;
}

void WaitCollector::request(const WaitRequest& request, std::span<const int> up, Time now, Output& out) {
  std::erase_if(passed_, [&](const auto& each) { return now - each.second >= kSeldom; });
  if (std::ranges::find(passed_, request.group, &std::pair<GroupName, Time>::first) != passed_.end()) return;
  passed_.emplace_back(request.group, now);
  const int root = root_of(request.members);
  if (root == host_) {
    const auto levels = std::bit_width(static_cast<unsigned>(table_.hosts())) + 1;
    return ask({.group = request.group, .sequence = request.sequence}, request, table_.hosts(), kHop * levels, up, now, out);
  }
  const int hop = root < 0 ? -1 : next_hop(host_, root, table_.hosts(), up);
  if (hop >= 0) out.send.emplace_back(hop, request);
}

void WaitCollector::on_question(int from, const WaitQuestion& question, std::span<const int> up, Time now, Output& out) {
  const WaitRequest& about = question.about;
  const milliseconds patience = std::clamp<milliseconds>(milliseconds(question.patience_ms), kHop, kVerdictWithin);
  ask({.asker = from, .asker_number = question.number, .group = about.group, .sequence = about.sequence}, about, question.end,
      patience, up, now, out);
}

void WaitCollector::ask(Question question, const WaitRequest& about, int end, milliseconds patience, std::span<const int> up,
                        Time now, Output& out) {
  question.number = ++numbers_;
  question.until = now + patience;
  question.summary.hosts = 1;
  for (const int rank : facts_.present_ranks(host_)) {
    if (!about.members.contains(rank)) continue;
    const WaitSlot* const its = slot(rank);
    question.summary.add(rank, its == nullptr ? std::nullopt : std::optional(its->waits), about.group, about.sequence);
  }
  const milliseconds below = std::max(patience - kHop, kHop);
  for (const Branch& branch : branches(host_, end, up)) {
    if (!has_members(about.members, branch.child, branch.end)) continue;
    question.children.push_back(branch.child);
    out.send.emplace_back(branch.child,
                          WaitQuestion{question.number, about, branch.end, static_cast<std::uint32_t>(below.count())});
  }
  question.awaited = question.children;
  if (questions_.size() == kMost) questions_.pop_front();
  questions_.push_back(std::move(question));
  if (questions_.back().awaited.empty()) finish(questions_.back(), now, out);
}

void WaitCollector::finish(Question& question, Time now, Output& out) {
  question.awaited.clear();
  question.answered = true;
  question.until = now + kVerdictWithin;
  if (question.asker >= 0) {
    out.send.emplace_back(question.asker, WaitAnswer{question.asker_number, question.summary});
    return;
  }
  conclude(question, question.summary, out);
  std::erase_if(questions_, [number = question.number](const Question& each) { return each.number == number; });
}

void WaitCollector::conclude(const Question& question, const WaitSummary& summary, Output& out) const {
  WaitVerdict verdict{question.number, question.group, question.sequence, summary};
  for (const int child : question.children) out.send.emplace_back(child, verdict);
  out.verdicts.push_back(std::move(verdict));
}

void WaitCollector::on_answer(int from, const WaitAnswer& answer, Output& out, Time now) {
  const auto question = std::ranges::find(questions_, answer.number, &Question::number);
  if (question == questions_.end() || std::erase(question->awaited, from) == 0) return;
  question->summary.add(answer.summary);
  if (question->awaited.empty()) finish(*question, now, out);
}

void WaitCollector::on_verdict(int from, const WaitVerdict& verdict, Output& out) {
  const auto question = std::ranges::find_if(questions_, [&](const Question& each) {
    return each.asker == from && each.asker_number == verdict.number && each.group == verdict.group;
  });
  if (question == questions_.end()) return;
  conclude(*question, verdict.summary, out);
  questions_.erase(question);
}

void WaitCollector::on_lost(int host, Output& out, Time now) {
  for (auto next = questions_.begin(); next != questions_.end();) {
    Question& question = *next++;  // finish() may erase it
    std::erase(question.children, host);
    if (std::erase(question.awaited, host) != 0 && question.awaited.empty()) finish(question, now, out);
  }
}

void WaitCollector::on_time(Time now, Output& out) {
  for (auto next = questions_.begin(); next != questions_.end();) {
    Question& question = *next++;
    if (!question.answered && now >= question.until) finish(question, now, out);
  }
  std::erase_if(questions_, [&](const Question& each) { return each.answered && now >= each.until; });
}

WaitCollector::Time WaitCollector::next_time() const noexcept {
  Time next = Time::max();
  for (const Question& each : questions_) next = std::min(next, each.until);
  return next;
}

bool WaitCollector::has_members(const RankRuns& members, int first_host, int end_host) const {
  for (int host = first_host; host < end_host; ++host) {
    if (facts_.ended().contains(host)) continue;
    if (std::ranges::any_of(table_.ranks_of(host), [&](int rank) { return members.contains(rank); })) return true;
  }
  return false;
}

int WaitCollector::root_of(const RankRuns& members) const {
  for (int host = 0; host < table_.hosts(); ++host) {
    if (has_members(members, host, host + 1)) return host;
  }
  return -1;
}

}  // namespace shoal
