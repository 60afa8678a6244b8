"""Does the fast suite bite? Puts the faults of faults.toml into a copy of the source, one by one, and runs the tests that must catch each.

python tests/bite.py                all faults
python tests/bite.py sign mask      those whose description has one of these words

Exit code 1 if a fault is not caught, or if it cannot be put in any more because the source has changed.
"""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib

TESTS = pathlib.Path(__file__).parent
ROOT = TESTS.parent
FAST = "not slow and not study and not long"
PASSED, FAILED = 0, 1


def main(words: list[str]) -> int:
    faults = tomllib.loads((TESTS / "faults.toml").read_text(encoding="utf-8"))["fault"]
    faults = [fault for fault in faults if not words or any(word in fault["what"] for word in words)]
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        sound = run(copy(place / "sound"), sorted({test for fault in faults for test in fault["tests"]}), place, workers=2)
        if sound.returncode != PASSED:
            print(sound.stdout + sound.stderr, "the tests must pass before a fault is put in", sep="\n")
            return 1
        print(f"without a fault the tests pass, {time.perf_counter() - begun:.0f} s", flush=True)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            verdicts = list(pool.map(lambda numbered: bitten(*numbered, place), enumerate(faults)))
    print(f"{sum(verdicts)} of {len(faults)} faults are caught, {time.perf_counter() - begun:.0f} s")
    return 0 if all(verdicts) else 1


def bitten(number: int, fault: dict, place: pathlib.Path) -> bool:
    """Whether the tests of a fault fail when it is there."""
    begun = time.perf_counter()
    source = copy(place / str(number))
    file = source / "attnflow" / fault["file"]
    text = file.read_text(encoding="utf-8")
    if text.count(fault["old"]) != 1:
        print(f"CANNOT BE PUT IN  {fault['what']}: {fault['file']} has it {text.count(fault['old'])} times", flush=True)
        return False
    file.write_text(text.replace(fault["old"], fault["new"]), encoding="utf-8")
    ran = run(source, fault["tests"], place)
    verdict = {PASSED: "NOT CAUGHT", FAILED: "caught"}.get(ran.returncode, f"pytest ended with {ran.returncode}")
    caught = [line.split(" - ")[0].removeprefix("FAILED ") for line in ran.stdout.splitlines() if line.startswith("FAILED")]
    print(f"{verdict}, {time.perf_counter() - begun:.0f} s  {fault['what']}  {' '.join(caught[:1])}", flush=True)
    shutil.rmtree(source)
    return ran.returncode == FAILED


def copy(to: pathlib.Path) -> pathlib.Path:
    """A copy of the source to put a fault into."""
    return shutil.copytree(ROOT / "src", to, ignore=shutil.ignore_patterns("__pycache__"))


def run(source: pathlib.Path, tests: list[str], place: pathlib.Path, workers: int = 0) -> subprocess.CompletedProcess:
    """The tests on that source, until one fails. Compiled programs are shared: a fault changes few of them."""
    words = ["-m", "pytest", "-x", "-n", str(workers), "-p", "no:cacheprovider", "-m", FAST, *(str(TESTS / test) for test in tests)]
    settings = {"PYTHONPATH": str(source), "JAX_COMPILATION_CACHE_DIR": str(place / "compiled"), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
