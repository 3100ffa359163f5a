"""Ids of tests that hold what is not the same in the next run, on the next day or on another machine; a made-up repository with each."""

import pytest

PARAMETERS = {
    "an_address": "[repr(object())]",
    "a_random_number": "[str(random.random())]",
    "a_uuid": "[str(uuid.uuid4())]",
    "a_temporary_folder": "[tempfile.mkdtemp()]",
    "where_temporary_folders_are": "[tempfile.gettempdir()]",
    "the_date": "[datetime.date.today().isoformat()]",
    "the_year": "[time.strftime('%Y')]",
    "the_time_of_day": "[datetime.datetime.now().strftime('%H:%M'), 'never']",
    "the_machine": "[platform.node()]",
    "the_process": "['pid', str(os.getpid())]",
    "how_many_there_are": "range(os.cpu_count())",
}
STEADY = (
    "def test_half():\n    assert half(8) == 4\n\n\n"
    "@pytest.mark.parametrize('n', [1, datetime.date(2020, 1, 2)], ids=repr)\ndef test_double(n):\n    assert double(2) == 4\n\n\n"
)


@pytest.fixture(scope="module")
def built(build_chosen):
    text = "import datetime, os, platform, random, tempfile, time, uuid\n\nimport pytest\n\nfrom counts import double, half\n\n\n"
    for name, parameters in PARAMETERS.items():
        text += f"@pytest.mark.parametrize('one', {parameters})\ndef test_{name}(one):\n    assert double(1) == 2\n\n\n"
    files = {
        "counts.py": "def double(n):\n    return 2 * n\n\n\ndef half(n):\n    return n // 2\n",
        "tests/test_odd.py": text + STEADY,
        "tests/test_more.py": "".join(f"def test_{number}():\n    pass\n\n\n" for number in range(9)),
    }
    return build_chosen("counts", files, lambda name: name in ("stub function counts.py:1 double", "remove function counts.py:5 half"))


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_test_whose_ids_change_is_named_and_does_not_count(built, name):
    report, _ = built
    assert report.dropped[f"tests/test_odd.py::test_{name}"] == "its ids are not the same in every run"
    assert not any(id.startswith(f"tests/test_odd.py::test_{name}[") for id in report.dropped)


def test_the_others_count_and_give_tasks_although_new_ids_come_with_every_run(built):
    report, store = built
    assert report.stable_tests == 12
    assert not report.rejected
    assert [task.fail_to_pass for task in store.tasks()] == [
        ("tests/test_odd.py::test_half",),
        ("tests/test_odd.py::test_double[1]", "tests/test_odd.py::test_double[datetime.date(2020, 1, 2)]"),
    ]
