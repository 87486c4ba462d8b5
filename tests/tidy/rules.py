"""The rules of the source tree, as functions from (path, text) or a list of paths to complaints. tests/tidy/tidy_test.py runs them."""
import os
import re

TOP_LEVEL = {"CMakeLists.txt", "CMakePresets.json", "include", "src", "kernels", "transports", "torch_plugin", "bench", "tests", "README.md",
             "LICENSE", "CHANGELOG.md"}  # and dotfiles
README_LINES = 60
ROOT_README_LINES = 200
FUNCTION_LINES = 80
TEST_NAME_CHARACTERS = 50
MARKDOWN_COLUMNS = 120
WRITTEN_BY_SCRIPTS = ("bench/results/",)  # tables of measurements may be wider
EXPLAINED_ABOVE = ("include/", "tests/", "torch_plugin/")  # their README explains what they hold
COLUMNS = {".cc": 128, ".h": 128, ".c": 128, ".cu": 128}  # clang-format keeps these
OTHER_COLUMNS = 150
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)

# Folders of pure functions on values: nothing that moves bytes, and no threads.
PURE = ("src/schedule/", "src/algorithms/", "src/topology/", "src/simulate/", "src/pipeline/", "src/selector/")
PURE_FORBIDDEN = re.compile(r"transports/|src/machine/(?!instances|hardware)|cuda|nccl|thread$|mutex$|shared_mutex$|"
                            r"condition_variable$|atomic$|future$|semaphore$|barrier$|latch$|stop_token$|pthread\.h|sys/socket\.h|sys/epoll\.h")
# The rooms of src/, from the bottom up. A room includes rooms before it only.
ROOMS = ("base", "trust", "settings", "topology", "machine", "schedule", "algorithms", "simulate", "pipeline", "selector", "device", "join",
         "diagnosis", "peer_memory", "plan", "progress", "runtime", "communicator", "cuda", "c_api", "cli")
# Which rooms know transports; from `communicator` on by their kinds, below by their interface.
KNOWS_TRANSPORTS = ROOMS[ROOMS.index("progress"):]
COMMON_OF_TRANSPORTS = "transports/common"
SHARED_RAILS = {"transports/ofi": "transports/rails", "transports/ucx": "transports/rails"}
# Thin clients of what users see.
CLIENTS = ("torch_plugin/", "bench/", "src/c_api/")
# Values without state that a client may use beside the public headers, and who may.
CLIENT_LIBRARIES = {"src/pipeline": ("torch_plugin/parallel/", "bench/train/")}
CLIENT_EXCEPTIONS = {"bench/reduce_benchmark.cc",  # it times the device itself, below what users see
                     "bench/gpu/fold_bandwidth.cc", "bench/gpu/all_reduce.cc", "bench/gpu/nccl.cc"}  # kernels; memory of a GPU

# Code that launches kernels, and the fakes of CUDA that run them on the host.
KERNEL_USERS = ("kernels/", "src/cuda/", "tests/cuda/", "tests/gpu/", "tests/torch/fake_cuda_api")

CUDA_HEADER = re.compile(r"(?:cuda|nccl|nvml)[\w.]*\.h$")

MACHINE_PATH = re.compile(r"(?<![\w.$}/])/(?:work|root)/|/home/\w+/")
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")


def _internal(path):
    """The folder of the project that an include names, or None for system and vendor headers."""
    match = re.match(r"(src/\w+|transports(?:/\w+)?|torch_plugin|bench|tests|kernels)/", path)
    return match[1] if match else None


def _room_complaints(path, room, included):
    """Rooms of src/ include rooms below them, and transports as KNOWS_TRANSPORTS says."""
    if room not in ROOMS:
        return []
    if match := re.match(r"src/(\w+)/", included):
        if match[1] not in ROOMS or ROOMS.index(match[1]) > ROOMS.index(room):
            return [f"{path} includes {included}: rooms include rooms below them only: {' '.join(ROOMS)}"]
    if included.startswith("transports/"):
        kinds = ROOMS.index(room) >= ROOMS.index("communicator")
        if room not in KNOWS_TRANSPORTS or not (kinds or included == "transports/transport.h"):
            return [f"{path} includes {included}: progress and runtime know transports/transport.h, communicator and above all of them"]
    return []


def include_complaints(path, text):
    """Arrows between folders point down only."""
    complaints = []

    def complain(included, why):
        complaints.append(f"{path} includes {included}: {why}")

    if (match := re.match(r"src/(\w+)/", path)) and match[1] not in (*ROOMS, "package"):
        complaints.append(f"{path}: the room {match[1]} is not in ROOMS of tests/tidy/rules.py")
    for _, included in INCLUDE.findall(text):
        folder = _internal(included)
        if path.startswith(PURE) and PURE_FORBIDDEN.search(included):
            complain(included, "the pure rooms know nothing of transports, devices and threads")
        if match := re.match(r"(transports/\w+)/", path):
            own = (match[1], "src/trust", "src/base", COMMON_OF_TRANSPORTS, SHARED_RAILS.get(match[1]))
            if folder and included != "transports/transport.h" and folder not in own:
                complain(included, "a transport includes its interface and its own files, never another's")
            if included.startswith("shoal/") and included not in ("shoal/limits.h", "shoal/status.h", "shoal/types.h"):
                complain(included, "of the public headers a transport needs the limits, the status and the types")
        elif path.startswith("transports/") and folder not in (None, COMMON_OF_TRANSPORTS, "src/base"):
            complain(included, "the interface of transports includes no transport")
        if match := re.match(r"src/(\w+)/", path):
            complaints += _room_complaints(path, match[1], included)
        if path.startswith("src/device/") and folder and folder != "src/device":
            complain(included, "a device includes its interface and its own files")
        if path.startswith(CLIENTS) and path not in CLIENT_EXCEPTIONS and folder and not (folder + "/").startswith(CLIENTS) \
                and not path.startswith(CLIENT_LIBRARIES.get(folder, ("?",))):
            complain(included, "clients see include/ only")
        if CUDA_HEADER.match(included) and not path.startswith("kernels/"):
            complain(included, "only kernels/ knows CUDA; everything else asks src/cuda/cuda_api.h")
        if path.startswith("kernels/") and folder not in (None, "kernels") and included != "src/cuda/cuda_api.h":
            complain(included, "kernels stand alone but for the interface that they implement")
        if folder == "kernels" and not path.startswith(KERNEL_USERS):
            complain(included, "kernels are reached through src/cuda")
        if path.startswith("include/") and not included.startswith("shoal/") and ("/" in included and folder):
            complain(included, "public headers stand alone")
        if not path.startswith(("tests/", "bench/", "torch_plugin/")) and folder in ("tests", "bench", "torch_plugin"):
            complain(included, "only the clients include each other")
    return complaints


def text_complaints(path, text):
    complaints = []
    allowed = COLUMNS.get(os.path.splitext(path)[1], OTHER_COLUMNS)
    for number, line in enumerate(text.splitlines(), 1):
        if MACHINE_PATH.search(line):
            complaints.append(f"{path}:{number} mentions a path of some machine: {line.strip()}")
        if UNFINISHED.search(line):
            complaints.append(f"{path}:{number} is unfinished: {line.strip()}")
        if len(line) > allowed and not path.endswith((".md", ".json", ".svg")) and "http" not in line:
            complaints.append(f"{path}:{number} has {len(line)} columns, {allowed} are allowed")
    if text and not text.endswith("\n"):
        complaints.append(f"{path} does not end in a line feed")
    return complaints


def layout_complaints(paths):
    """`paths`: of all files, from the root of the checkout."""
    complaints = []
    for top in sorted({path.split("/")[0] for path in paths}):
        if top not in TOP_LEVEL and not top.startswith("."):
            complaints.append(f"{top}: the top level is closed")
    folders = set()
    for path in paths:
        if path.startswith("."):
            continue
        parts = path.split("/")[:-1]
        folders |= {"/".join(parts[:depth]) for depth in range(1, min(len(parts), 2) + 1)}
    for folder in sorted(folders):
        if f"{folder}/README.md" not in paths and not folder.startswith(EXPLAINED_ABOVE):
            complaints.append(f"{folder} has no README.md")
    return complaints


def readme_complaints(path, text):
    lines, allowed = text.count("\n"), README_LINES if "/" in path else ROOT_README_LINES
    return [f"{path} has {lines} lines, {allowed} are allowed"] if lines > allowed else []


def markdown_complaints(path, text):
    if path.startswith(WRITTEN_BY_SCRIPTS):
        return []
    return [f"{path}:{number} has {len(line)} columns, {MARKDOWN_COLUMNS} are allowed"
            for number, line in enumerate(text.splitlines(), 1) if len(line) > MARKDOWN_COLUMNS]


# The first line of a definition, at column 0: not of a namespace or a type, no comment, no directive.
_DEFINITION = re.compile(r"^(?!namespace|struct|class|enum|extern|union|inline namespace|using|typedef|//|#|\}|\{|template)\S.*")


def function_complaints(path, text):
    """Functions outside of classes, in files as clang-format writes them: from the first line at column 0 to a lone closing brace."""
    complaints, first, inside = [], None, False
    for number, line in enumerate(text.splitlines(), 1):
        if inside:
            if line == "}" and number - first + 1 > FUNCTION_LINES:
                complaints.append(f"{path}:{first} is a function of {number - first + 1} lines, {FUNCTION_LINES} are allowed")
            inside = not line.startswith("}")
            continue
        if _DEFINITION.match(line):
            first = number if "(" in line else None
        inside = first is not None and line.endswith("{")
        if line.endswith((";", "}")):
            first = None
    return complaints


_TEST = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)


def test_name_complaints(path, text):
    """A name of a GoogleTest case states the expected behaviour briefly: its subject is a thing, not "who ..."."""
    complaints = []
    for test in _TEST.finditer(text):
        where = f"{path}:{text.count(chr(10), 0, test.start()) + 1}"
        if len(test[2]) > TEST_NAME_CHARACTERS:
            complaints.append(f"{where} has the test {test[2]} of {len(test[2])} characters, {TEST_NAME_CHARACTERS} are allowed")
        if re.match(r"Who(?![a-z])|Whoever", test[2]):
            complaints.append(f"{where} has the test {test[2]}: name what acts, not 'who'")
    return complaints


# Names that code and prose had once; language.md of the project says what replaced them and why.
RETIRED = re.compile(r"\b(?:WindowCalls|MeetingSlot|advance_meeting|Mesh|take_seat|leave_seat|RollCall|Patience|Sealing|WiredRanks|wire_up|"
                     r"Contestant|shared_fold|shared_moves|ordinary_memory|first_share|kChangesPartners|SHOAL_LEDGER|LedgerHeader)\b")


def retired_complaints(path, text):
    return [f"{path}:{number} has the retired name {found[0]}" for number, line in enumerate(text.splitlines(), 1)
            for found in RETIRED.finditer(line)]
