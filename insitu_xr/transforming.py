"""Transforms of whole batches: functions of the caller, and what they may change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from insitu_xr.batch import Batch
from insitu_xr.errors import RequestError
from insitu_xr.plan.arrays import ArraySpec, Key

#: A function of a batch. It returns another one, made by ``batch.replaced(arrays)``, or None where it has changed the
#: arrays of the one it was given. One that changes a shape or a dtype has a method ``output(template)`` as well: given
#: the shape and dtype of every array, it returns those that will be.
type Transform = Callable[[Batch], Batch | None]
type Template = Mapping[Key, ArraySpec]


def transforms_of(given: Any) -> tuple[Transform, ...]:
    """The transforms that were asked for, in order.

    Raises
    ------
    RequestError
        If one cannot be called.
    """
    listed = (given,) if callable(given) else given
    if not isinstance(listed, Iterable):
        raise RequestError(f"batch_transforms must be a list of functions of a batch, but got {given!r}; write [f, g]")
    found = tuple(listed)
    for transform in found:
        if not callable(transform):
            raise RequestError(
                f"batch_transforms must be functions of a batch, but got {transform!r}; write for example "
                "lambda batch: batch.replaced({key: array / 2 for key, array in batch.arrays.items()})"
            )
    return found


def declared(transforms: Sequence[Transform], template: Template) -> Template:
    """What the arrays will be after some transforms, as far as those say that they change them.

    Raises
    ------
    RequestError
        If what is declared is not the template of a batch.
    """
    for transform in transforms:
        template = _declared(transform, template)
    return template


def _declared(transform: Transform, template: Template) -> Template:
    output = getattr(transform, "output", None)
    if output is None:
        return template
    found = output(template)
    if not isinstance(found, Mapping) or not all(isinstance(spec, ArraySpec) for spec in found.values()):
        raise RequestError(
            f"output of batch transform {_name(transform)} must be a mapping of shapes and dtypes such as the one "
            f"given to it, but got {found!r}; return {{key: spec.replace(dtype=...) for key, spec in template.items()}}"
        )
    if set(found) != set(template):
        raise RequestError(
            f"output of batch transform {_name(transform)} must have the arrays {sorted(template)}, but got "
            f"{sorted(found)}; return all of them"
        )
    return found


def transformed(transforms: Sequence[Transform], batch: Batch, template: Template) -> Batch:
    """Carry transforms out, one after another.

    Raises
    ------
    RequestError
        If one returns something else than a batch, or changes a shape or a dtype that it did not declare.
    """
    for transform in transforms:
        template = _declared(transform, template)
        try:
            found = transform(batch)
        except Exception as error:
            error.add_note(f"in batch transform {_name(transform)}, at {_place(batch)}")
            raise
        if found is not None:
            batch = found
        _check(transform, batch, template)
    return batch


def _check(transform: Transform, batch: Any, template: Template) -> None:
    if not isinstance(batch, Batch):
        raise RequestError(
            f"batch transform {_name(transform)} must return a batch, or None where it changed the arrays in place, "
            f"but got {type(batch).__name__}; return batch.replaced(arrays)"
        )
    arrays = batch.arrays
    for key, expected in template.items():
        found = ArraySpec.of(arrays[key]) if key in arrays else None
        if found != expected:
            raise RequestError(
                f"batch transform {_name(transform)} must leave {'/'.join(filter(None, key))!r} {expected}, but got "
                f"{found or 'nothing'}; give it a method output(template) that declares what it changes"
            )


def _name(transform: Any) -> str:
    name = getattr(transform, "__qualname__", None)
    return str(name) if name else type(transform).__qualname__


def _place(batch: Batch) -> str:
    positions = batch.positions
    return f"the batch of positions {positions[:4].tolist()}" + (" and more" if len(positions) > 4 else "")
