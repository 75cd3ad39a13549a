"""Batches as TensorFlow tensors: ``loader.to("tensorflow")``, over the memory of the arrays where TensorFlow can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from insitu_xr.errors import DtypeError, MissingExtraError

if TYPE_CHECKING:
    from insitu_xr import Batch, Loader

type Key = tuple[str, str]


def to_tensorflow(loader: Loader) -> TensorflowBatches:
    """Return the batches of a loader with TensorFlow tensors.

    Called as ``loader.to("tensorflow")``. On the CPU no value is copied where its memory begins at a multiple of 64
    bytes, as that of all large arrays does.

    Parameters
    ----------
    loader : insitu_xr.Loader
        The loader whose batches are wanted. It stays usable, and stays the owner of its memory and threads: close it,
        not the result.

    Returns
    -------
    TensorflowBatches
        An iterable of `insitu_xr.Batch` whose arrays are tensors; iterating it again is the next epoch.

    Raises
    ------
    MissingExtraError
        Where TensorFlow is not installed.
    DtypeError
        Where a variable has a dtype that TensorFlow does not know; nothing has been read then.
    """
    try:
        import tensorflow
    except ImportError as error:
        message = "tensorflow must be installed to deliver its tensors, but got no such package; pip install tensorflow"
        raise MissingExtraError(message) from error
    for key, spec in loader.template.items():
        try:
            known = spec.dtype.kind in "biufc" and tensorflow.dtypes.as_dtype(spec.dtype)
        except TypeError:
            known = False
        if not known:
            raise DtypeError(
                f"variable {key[1] or key[0]!r} must have a dtype that TensorFlow knows, but got {spec.dtype}; leave "
                "it out of the loader that goes there, or iterate the loader itself for numpy arrays"
            )
    return TensorflowBatches(loader)


@dataclass(frozen=True, slots=True, eq=False)
class TensorflowBatches:
    """The batches of ``loader`` with TensorFlow tensors. As thread-safe as the loader is."""

    loader: Loader

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        """Start the next epoch of the loader, once a batch is asked for."""
        return map(_adopted, chain.from_iterable((self.loader,)))

    def dataset(self) -> Any:
        """A ``tf.data.Dataset`` of (inputs, targets), or of the variables, for ``model.fit`` of Keras.

        Every iteration of it is the next epoch of the loader. TensorFlow copies what it is given so.
        """
        import tensorflow

        def signature(group: str) -> Any:
            specs = {
                key[1]: tensorflow.TensorSpec((None, *spec.shape[1:]), spec.dtype)
                for key, spec in self.loader.template.items()
                if key[0] == group
            }
            return specs.get("", specs)

        groups = tuple(dict.fromkeys(take.group for take in self.loader.plan.request.takes))
        signatures = tuple(signature(group) for group in groups)

        def epoch() -> Iterator[Any]:
            for batch in self.loader:
                found = tuple(batch.group(group) for group in groups)
                yield found if len(found) > 1 else found[0]

        made = tensorflow.data.Dataset.from_generator(
            epoch, output_signature=signatures if len(signatures) > 1 else signatures[0]
        )
        return made.apply(tensorflow.data.experimental.assert_cardinality(len(self.loader)))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, which decides on the order, that the next iteration gives."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """See `insitu_xr.Loader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `insitu_xr.Loader.load_state_dict`."""
        self.loader.load_state_dict(state)


def _adopted(batch: Batch) -> Batch:
    import tensorflow

    return batch.replaced({key: _tensor(tensorflow, array) for key, array in batch.arrays.items()})


def _tensor(tensorflow: Any, array: np.ndarray[Any, Any]) -> Any:
    if array.ctypes.data % 64 or array.dtype == bool or not array.size:
        return tensorflow.constant(array)
    return tensorflow.experimental.dlpack.from_dlpack(array.__dlpack__())
