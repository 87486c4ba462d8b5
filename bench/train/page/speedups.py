"""Speed-ups over one rank, from documents of shoal_train --json. Does not depend on pictures, so that bench/study needs no matplotlib."""


def _key(document, row):
    """The properties that must be equal apart from the number of ranks. None if a document does not state the number of threads: then nothing
    is compared. A machine is identified by its processor and kernel, which the emulated hosts of one machine share."""
    if row.get("threads") is None:
        return None
    machine = document.get("machine", {})
    return (row["model"], row["dataset"], row["batch_per_rank"], row["threads"], row.get("device", "cpu"), machine.get("cpu"), machine.get("kernel"))


def fill(documents):
    """Fills speedup_vs_1 in the rows of `documents` if the run itself did not and a matching one-rank row exists; returns the documents. Among
    several matching rows the last one counts, of the same backend if there is one."""
    alone = {}
    for document in documents:
        for row in document["results"]:
            key = _key(document, row)
            if row["ranks"] == 1 and row["images_per_s"] and key is not None:
                alone.setdefault(key, {})[row["backend"]] = row["images_per_s"]
    for document in documents:
        for row in document["results"]:
            rates = alone.get(_key(document, row), {})
            if row.get("speedup_vs_1") is None and row["images_per_s"] and rates:
                row["speedup_vs_1"] = row["images_per_s"] / rates.get(row["backend"], list(rates.values())[-1])
    return documents
