"""Channels of the stacked layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from insitu_xr.errors import DtypeError, RequestError
from insitu_xr.plan.arrays import array_shapes, batch_bytes
from insitu_xr.plan.channels import stacks_of
from insitu_xr.plan.request import Take
from tests.plan.requests import request, variable

LEVELS = {"level": ["500", "850"]}


def test_channels_of_levels_leads_and_statics() -> None:
    specs = [variable("t2m", 8, 4, (3, 5)), variable("z", 8, 4, (3, 5, 2)), variable("lsm", 0, 0, (3, 5))]
    stack = stacks_of(request(specs, 8, [-1, 0]), {"z": LEVELS})["variables"]
    assert stack.channels == ("t2m@-1", "t2m@0", "z500@-1", "z850@-1", "z500@0", "z850@0", "lsm")
    assert (stack.grid_dims, stack.grid_shape, stack.dtype) == (("y", "x"), (3, 5), np.dtype("f4"))
    assert [(b.variable, b.column, b.start, b.count, b.order) for b in stack.blocks] == [
        ("t2m", 0, 0, 1, (0, 1)),
        ("t2m", 1, 1, 1, (0, 1)),
        ("z", 0, 2, 2, (2, 0, 1)),
        ("z", 1, 4, 2, (2, 0, 1)),
        ("lsm", None, 6, 1, (0, 1)),
    ]


def test_without_leads_channels_have_no_suffix() -> None:
    specs = [variable("a", 8, 4), variable("b", 8, 4)]
    assert stacks_of(request(specs, 8), {})["variables"].channels == ("a", "b")


def test_two_groups_are_two_arrays_and_statics_go_to_the_first() -> None:
    wanted = request([variable("a", 8, 4), variable("m", 0, 0)], 8, [0, 1])
    wanted = replace(wanted, takes=(Take("inputs", "a", (0,), True), Take("targets", "a", (1,), True)))
    stacks = stacks_of(wanted, {})
    assert {name: stack.channels for name, stack in stacks.items()} == {"inputs": ("a@0", "m"), "targets": ("a@+1",)}
    assert {key: shape for key, (shape, _) in array_shapes(wanted, stacks, 5).items()} == {
        ("inputs", ""): (5, 2, 3),
        ("targets", ""): (5, 1, 3),
    }
    assert batch_bytes(wanted, stacks, 5) == (5 * 2 * 3 + 5 * 3) * 4


def test_the_dict_layout() -> None:
    wanted = request([variable("a", 8, 4), variable("m", 0, 0, (7,))], 8, [0, 1])
    shapes = array_shapes(wanted, None, 5)
    assert {key: shape for key, (shape, _) in shapes.items()} == {
        ("variables", "a"): (5, 2, 3),
        ("statics", "m"): (7,),
    }
    assert batch_bytes(wanted, None, 5) == (5 * 2 * 3 + 7) * 4
    bare = request([variable("a", 8, 4)], 8)
    assert array_shapes(bare, None, 5)["variables", "a"][0] == (5, 3)


def test_the_common_dtype() -> None:
    specs = [variable("a", 8, 4), replace(variable("b", 8, 4), dtype=np.dtype("i4"))]
    assert stacks_of(request(specs, 8), {})["variables"].dtype == np.dtype("f8")


def test_unequal_grids_are_refused() -> None:
    specs = [variable("a", 8, 4, (3, 5)), variable("b", 8, 4, (3, 4))]
    with pytest.raises(RequestError, match=r"'a' with \(y: 3, x: 5\) and 'b' with \(y: 3, x: 4\)"):
        stacks_of(request(specs, 8), {})


def test_text_is_refused() -> None:
    specs = [variable("a", 8, 4), replace(variable("b", 8, 4), dtype=np.dtype("S3"))]
    with pytest.raises(DtypeError, match=r"'b' must be numeric for layout='stacked', but got \|S3"):
        stacks_of(request(specs, 8), {})
