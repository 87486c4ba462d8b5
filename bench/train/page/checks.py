"""Checks of the files of shoal_train before they are drawn. A function returns the place and kind of the first fault, or None."""

TEXT = ("text", lambda value: isinstance(value, str))
WHOLE = ("a whole number", lambda value: type(value) is int)
NUMBER = ("a number", lambda value: type(value) in (int, float))
LIST = ("a list", lambda value: isinstance(value, list))
OBJECT = ("an object", lambda value: isinstance(value, dict))


def or_null(kind):
    return (f"{kind[0]} or null", lambda value: value is None or kind[1](value))


# Null: not measured. Files of older versions lack the fields that later versions added.
ROW = {"backend": TEXT, "overlap": TEXT, "model": TEXT, "dataset": TEXT, "ranks": WHOLE, "nodes": WHOLE, "batch_per_rank": WHOLE, "steps": WHOLE,
       "seconds": NUMBER, "step_loss": LIST,
       **dict.fromkeys(("images_per_s", "comm_exposed_s", "comm_busy_s", "busbw_gbs", "accuracy", "loss", "cpu_percent", "gpu_percent"),
                       or_null(NUMBER))}
LATER_IN_ROW = {"rate": or_null(TEXT), "device": TEXT, "threads": or_null(WHOLE), "epoch": WHOLE, "epoch_steps": or_null(WHOLE),
                "speedup_vs_1": or_null(NUMBER), "pipeline": TEXT, "pipeline_ranks": LIST}
PIPELINE_RANK = {"rank": WHOLE, "stage": WHOLE, "peak_bytes": WHOLE, "peak_bytes_predicted": WHOLE, "busy_ms": NUMBER, "idle_ms": NUMBER}
LATER_IN_PIPELINE_RANK = {"replica": WHOLE, "slice": WHOLE, "waiting_ms": NUMBER, "last_step": LIST}
ACTION = {"op": TEXT, "stage": WHOLE, "microbatch": WHOLE, "begin_ms": NUMBER, "end_ms": NUMBER}
TURN = {"backend": TEXT, "overlap": TEXT, "seconds": NUMBER, "time_s": NUMBER, "cpu_s": NUMBER}
LATER_IN_TURN = {"gpu_percent": or_null(NUMBER)}
LATER_IN_FILE = {"machine": OBJECT, "command": TEXT, "data": OBJECT, "study": OBJECT, "turns": LIST}
LATER_IN_STUDY = {"part": TEXT, "title": TEXT}
LATER_IN_DATA = {"words": TEXT, "kind": TEXT, "train_images": or_null(WHOLE)}
SPAN = {"pid": WHOLE, "tid": WHOLE, "cat": TEXT, "ts": NUMBER, "dur": NUMBER}


def _object(where, value, needed, others=None):
    if not isinstance(value, dict):
        return f"{where} is not an object"
    for name, (kind, fits) in {**needed, **(others or {})}.items():
        if name not in value:
            if name in needed:
                return f'{where} has no "{name}"'
        elif not fits(value[name]):
            return f'"{name}" of {where} is not {kind}'
    return None


def _each(where, values, *fields):
    return next(filter(None, (_object(f"{where} {number}", value, *fields) for number, value in enumerate(values, 1))), None)


def of_pipeline(row, where="the row"):
    """For a row of a pipeline, or a row that may be one."""
    ranks = row.get("pipeline_ranks", [])
    found = _object(where, row, {"pipeline": TEXT}) if ranks else None
    found = found or _each(f"rank of {where}:", ranks, PIPELINE_RANK, LATER_IN_PIPELINE_RANK)
    return found or next(filter(None, (_each(f"action of {where}:", rank.get("last_step", []), ACTION) for rank in ranks)), None)


def of_results(document):
    """For a file of --json, which has a list of results."""
    return (_object("the file", document, {"results": LIST}, LATER_IN_FILE) or _object('"data"', document.get("data", {}), {}, LATER_IN_DATA) or
            _object('"study"', document.get("study", {}), {}, LATER_IN_STUDY) or
            _each("row", document["results"], ROW, LATER_IN_ROW) or
            next(filter(None, (of_pipeline(row, f"row {number}") for number, row in enumerate(document["results"], 1))), None) or
            _each("turn", document.get("turns", []), TURN, LATER_IN_TURN))


def of_trace(document):
    """For a file of --trace."""
    found = (_object("the file", document, {"traceEvents": LIST}, {"otherData": OBJECT}) or
             _object('"otherData"', document.get("otherData", {}), {}, {"title": TEXT}))
    for number, event in enumerate([] if found else document["traceEvents"], 1):
        where = f"event {number}"
        found = _object(where, event, {"ph": TEXT, "name": TEXT, "pid": WHOLE})
        if not found and event["ph"] == "X":
            found = _object(where, event, SPAN)
        if not found and event["name"] == "process_name":
            found = _object(where, event, {"args": OBJECT}) or _object(f'"args" of {where}', event["args"], {"name": TEXT})
        if found:
            break
    return found
