"""The seccomp filter, run on a five-line model of the kernel's machine, since a system has only one architecture."""

import errno
import struct

import pytest

from sinkscope.evaluation.sandbox.isolation import DENIED, GUARDED, OF_FILES, build_filter

ALLOWED, REFUSED, KILLED = 0x7FFF0000, 0x50000 | errno.EPERM, 0x80000000


def decide(program, architecture, number, *arguments):
    """What the kernel does with a call: the classic BPF machine with the four instructions the filter uses."""
    lines, data, place, accumulator = list(struct.iter_unpack("HBBI", program)), {0: number, 4: architecture}, 0, 0
    data |= {16 + 8 * at: argument for at, argument in enumerate(arguments)}
    while True:
        code, if_true, if_false, value = lines[place]
        if code == 0x06:
            return value
        if code == 0x20:
            accumulator = data[value]
        else:
            place += if_true if {0x15: accumulator == value, 0x35: accumulator >= value}[code] else if_false
        place += 1


@pytest.mark.parametrize("machine", DENIED)
def test_only_what_is_listed_is_refused(machine):
    architecture, denied = DENIED[machine]
    program = build_filter(machine)
    plain = [number for number in range(600) if number not in GUARDED[machine]]
    refused = [number for number in plain if decide(program, architecture, number) != ALLOWED]
    assert refused == sorted(denied.values())
    assert all(decide(program, architecture, number) == REFUSED for number in refused)


@pytest.mark.parametrize("machine", DENIED)
def test_calls_that_depend_on_an_argument(machine):
    architecture, (ioctl, fcntl, prlimit) = DENIED[machine][0], GUARDED[machine]
    program = build_filter(machine)
    assert [decide(program, architecture, fcntl, 5, command) for command in (1, 3, 8, 10, 15, 1024)] == [
        *[ALLOWED] * 2,
        *[REFUSED] * 3,
        ALLOWED,
    ]
    assert [decide(program, architecture, prlimit, pid) for pid in (0, 1, 4711)] == [ALLOWED, REFUSED, REFUSED]
    assert [decide(program, architecture, ioctl, 5, command) for command in (0x5401, 0x5412)] == [ALLOWED, REFUSED]


@pytest.mark.parametrize("machine", DENIED)
def test_files_are_changed_by_path_only_where_they_are_others(machine):
    architecture = DENIED[machine][0]
    with_root, without = build_filter(machine, True), build_filter(machine, False)
    for number in OF_FILES[machine].values():
        assert (decide(with_root, architecture, number), decide(without, architecture, number)) == (ALLOWED, REFUSED)


def test_calls_of_another_architecture_or_table_end_the_program():
    x86, arm = DENIED["x86_64"][0], DENIED["aarch64"][0]
    assert decide(build_filter("x86_64"), arm, 0) == decide(build_filter("aarch64"), x86, 0) == KILLED
    assert decide(build_filter("x86_64"), x86, 0x40000000 + 41) == KILLED


def test_both_tables_deny_the_same_calls():
    """ARM64 has no calls of the old style for these; theirs are the general ones, which are denied."""
    x86, arm = (set(denied) for _, denied in DENIED.values())
    assert x86 - arm == {"fork", "vfork"}
    assert arm <= x86
