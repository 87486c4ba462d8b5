"""The tables in the repository's README: each lies between two marks and is written by a program of bench/."""
import os

README = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "README.md")
WRITERS = {"comparison": "bench/compare --tables", "demo": "bench/demo --keep", "failures": "bench/failures --tables",
           "training": "bench/study --page"}


def marks(name):
    return f"<!-- {name}: written by {WRITERS[name]} -->", f"<!-- end of {name} -->"


def replaced(text, name, table):
    """`text` with `table` between the marks of `name`. ValueError where it does not hold both."""
    first, last = marks(name)
    head, begin, rest = text.partition(first)
    _, end, tail = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"README.md: there is no place for the table: put the lines '{first}' and '{last}' there")
    return head + begin + "\n" + table + "\n" + end + tail


def put(name, table):
    with open(README, encoding="utf-8") as file:
        text = replaced(file.read(), name, table)
    with open(README, "w", encoding="utf-8") as file:
        file.write(text)
