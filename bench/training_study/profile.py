"""From the trace of a step: the times of its parts, and when each gradient is ready in backward."""


def _of_rank(events):
    training = sorted((event for event in events if event["ph"] == "X" and event["tid"] == 0), key=lambda event: event["ts"])
    seconds = dict.fromkeys(("load", "forward", "backward", "wait", "update"), 0.0)
    ready, computed_s = [], 0.0
    for event in training:
        seconds[event["cat"]] = seconds.get(event["cat"], 0.0) + event["dur"] / 1e6
        if event["cat"] == "backward":
            computed_s += event["dur"] / 1e6  # without waits
            if size := event.get("args", {}).get("gradient_bytes"):
                ready.append([round(computed_s, 6), size])
    return {f"{key}_s": round(value, 6) for key, value in seconds.items()} | {"gradients": ready}


def profiles(events):
    """{backend: profile of its first rank}. A profile has seconds of each part of the training thread's step, and `gradients`: pairs of seconds of
    backward and bytes, in the order in which they appear."""
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    found = {}
    for process, name in names.items():
        replica, _, rank = name.partition(" rank ")
        if rank == "0":
            found[replica.split("+")[0]] = _of_rank([event for event in events if event["pid"] == process])
    return found
