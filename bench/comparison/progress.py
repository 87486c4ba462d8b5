"""A line with the current part and the remaining time."""
import sys
import time


def minutes(seconds):
    return f"{max(1, round(seconds / 60))} min" if seconds >= 90 else f"{max(0, round(seconds))} s"


class Progress:
    """Thread rule: one thread. `expected_s`: one number for each part of the work, in order."""

    def __init__(self, expected_s, stream=sys.stderr, clock=time.monotonic):
        self._expected_s, self._stream, self._clock = expected_s, stream, clock
        self._part, self._spent_s, self._began = -1, 0.0, clock()

    def remaining_s(self):
        """The remaining time, if the rest is as fast, compared with its expected time, as the parts that are done."""
        done_s = sum(self._expected_s[:self._part])
        pace = self._spent_s / done_s if done_s and self._spent_s else 1.0
        current_s = pace * self._expected_s[self._part] - (self._clock() - self._began)
        return max(current_s, 0) + pace * sum(self._expected_s[self._part + 1:])

    def start(self, title):
        """The next part begins."""
        if self._part >= 0:
            self._spent_s += self._clock() - self._began
        self._part, self._began = self._part + 1, self._clock()
        self._title = title
        self.show("")

    def show(self, detail):
        """Shows `detail`, which changes within a part, on a terminal only: a log gets one line for each part."""
        text = f"[{self._part + 1}/{len(self._expected_s)}] {self._title}{': ' if detail else ''}{detail}; about {minutes(self.remaining_s())} left"
        if self._stream.isatty():
            self._stream.write("\r\x1b[K" + text)
        elif not detail:
            self._stream.write(text + "\n")
        self._stream.flush()

    def end(self):
        if self._stream.isatty():
            self._stream.write("\r\x1b[K")
            self._stream.flush()
