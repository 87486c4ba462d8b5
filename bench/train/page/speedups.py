"""Speed-ups over one rank, from documents of shoal_train --json. Knows nothing of pictures, so that bench/study uses it without matplotlib."""


def _key(document, row):
    """What must be the same but for the number of ranks. None where a document does not say how many threads computed: then nothing is compared. A
    machine is told by its processor and kernel; the emulated hosts of one machine have the same."""
    if row.get("threads") is None:
        return None
    machine = document.get("machine", {})
    return (row["model"], row["dataset"], row["batch_per_rank"], row["threads"], row.get("device", "cpu"), machine.get("cpu"), machine.get("kernel"))


def fill(documents):
    """Fills speedup_vs_1 in the rows of `documents` where the run itself did not and a one-rank row of them fits; returns them. Of several that fit
    the last one counts, of the same backend if there is one."""
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
