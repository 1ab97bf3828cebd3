"""Tensors of the Open Inference Protocol v2, to and from numpy.

A tensor on the wire is a map of `name`, `shape`, `datatype` and `data`; `data` is little-endian bytes in row-major
order. Decoded arrays are read-only views of the message's bytes, except `BYTES`, and `BF16`, which numpy lacks and
which becomes float32.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .errors import Malformed

Array: TypeAlias = npt.NDArray[Any]

MAX_TENSORS = 64
"""Largest number of tensors in one message."""
MAX_RANK = 16
"""Largest number of dimensions of a tensor."""

_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
NUMPY_NAMES = {str(dtype): name for name, dtype in _DTYPES.items()} | {"bfloat16": "BF16", "str": "BYTES", "bytes": "BYTES"}
"""The datatypes by the names that numpy and Python give them."""
DATATYPES = frozenset(_DTYPES) | {"BF16", "BYTES"}
"""The names of all datatypes."""

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Typed:
    """A value with an explicit datatype, for `BF16` or where a Python value should not get the default."""

    value: Any
    datatype: str


def as_array(value: Any) -> Array:
    """Returns `value` as an array: arrays of any library keep their type, also in a list; Python floats become float32.

    Python integers become int64, or uint64 if they need it; texts and bytes become an object array of bytes. bfloat16 becomes
    float32. Raises `Malformed` for a Python float beyond the range of float32, and for integers that no type holds together.
    """
    array = _untyped(value)
    if array.dtype == np.float64 and not _has_type(value):
        _check_integers(value, array)
        return _converted(array, np.dtype(np.float32), "FP32")
    return array


def _has_type(value: Any) -> bool:
    """Returns whether a value has a type of its own, which is kept: an array, or a list of arrays."""
    if isinstance(value, np.generic) or _is_array(value):
        return True
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return _is_array(value)


def _is_array(value: Any) -> bool:
    typed = hasattr(value, "detach") or hasattr(value, "__array__")
    return typed and not isinstance(value, np.generic)


def _check_integers(value: Any, array: Array) -> None:
    """Raises `Malformed` if numpy made floats of integers: of large and negative ones together."""
    if (np.abs(array) >= 2.0**63).any() and all(isinstance(element, int) for element in _flat([value])):
        raise Malformed("its integers fit neither INT64 nor UINT64 together; send floats, or a `Typed` value")


def _untyped(value: Any) -> Array:
    """Returns `value` as an array; Python floats become float64."""
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "detach"):
        tensor = value.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":
            tensor = tensor.float()
        array = tensor.numpy()
    elif isinstance(value, np.generic):
        array = np.asarray(value)
    else:
        array = _python_array(value)
    if array.dtype.name == "bfloat16":
        # The type of the package ml_dtypes, as of JAX.
        array = array.astype(np.float32)
    return _texts(array) if array.dtype.kind in "USO" else array


def _python_array(value: Any) -> Array:
    if isinstance(value, (str, bytes)):
        return np.array([value], dtype=object)
    array = np.asarray(value)
    # numpy would cut trailing zero bytes of texts.
    if array.dtype.kind in "US":
        return np.array(value, dtype=object)
    return array


def _texts(array: Array) -> Array:
    texts = np.empty(array.shape, dtype=object)
    for index, text in np.ndenumerate(array):
        if isinstance(text, str):
            texts[index] = text.encode()
        elif isinstance(text, (bytes, bytearray, memoryview)):
            texts[index] = bytes(text)
        else:
            raise Malformed(f"an array of objects holds {type(text).__name__}; only texts and bytes have a datatype")
    return texts


def is_text(text: str) -> bool:
    """Returns whether UTF-8, and so a message, can hold a text: not if it has half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def datatype_of(array: Array) -> str:
    """Returns the datatype of an array.

    Raises `Malformed` for a type that has none, such as complex numbers.
    """
    if array.dtype.kind == "O":
        return "BYTES"
    name = _NAMES.get(array.dtype.newbyteorder("<") if array.dtype.byteorder == ">" else array.dtype)
    if name is None:
        raise Malformed(f"numpy's {array.dtype} has no datatype in the protocol; convert it to one of {sorted(DATATYPES)}")
    return name


def encode(name: str, value: Any) -> dict[str, Any]:
    """Returns the map of a tensor, as messages hold it."""
    wanted = None
    if isinstance(value, Typed):
        value, wanted = value.value, value.datatype
        if wanted not in DATATYPES:
            raise Malformed(f"tensor `{name}`: {wanted} is no datatype; it is one of {sorted(DATATYPES)}")
    if not isinstance(name, str):
        raise Malformed(f"a tensor's name is a text, not {name!r}")
    if not is_text(name):
        raise Malformed(f"a tensor has the name {name!r}, which UTF-8 cannot hold")
    try:
        # With an explicit datatype, a Python float is rounded once.
        array = _untyped(value) if wanted else as_array(value)
        datatype = wanted or datatype_of(array)
        data = to_bytes(array, datatype)
    except Malformed as error:
        raise Malformed(f"tensor `{name}`: {error.message}") from None
    except (TypeError, ValueError, OverflowError) as error:
        # Such as numpy's for lists of different lengths.
        raise Malformed(f"tensor `{name}`: its value is no array: {error}") from None
    if array.ndim > MAX_RANK:
        raise Malformed(f"tensor `{name}` has {array.ndim} dimensions; at most {MAX_RANK} are allowed")
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": data}


def to_bytes(array: Array, datatype: str) -> bytes:
    """Returns the data of an array in a datatype: little-endian, row-major.

    Raises `Malformed` if an element does not fit the type. A finite number does not become an infinity.
    """
    if datatype == "BYTES":
        return b"".join(_LENGTH.pack(len(text)) + text for text in _texts(array).ravel())
    if datatype == "BF16":
        return _to_bfloat16(array)
    dtype = _DTYPES[datatype]
    return _converted(array, dtype, datatype).tobytes()


def _converted(array: Array, dtype: np.dtype[Any], datatype: str) -> Array:
    if array.dtype == dtype:
        return array
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            converted = array.astype(dtype)
        _check_range(array, converted, datatype)
        return converted
    with np.errstate(invalid="ignore"):
        converted = array.astype(dtype)
    # numpy wraps what is too large and cuts fractions.
    if not np.array_equal(converted, array):
        raise Malformed(f"an element of the array of {array.dtype} does not fit {datatype}")
    return converted


def _check_range(array: Array, converted: Array, datatype: str) -> None:
    """Raises `Malformed` if a finite element of the array became an infinity."""
    beyond = np.isinf(converted) & np.isfinite(array)
    if beyond.any():
        first = array[beyond].ravel()[0]
        raise Malformed(f'{first} is beyond the range of {datatype}; scale the values, or send them as `Typed(value, "FP64")`')


def _to_bfloat16(array: Array) -> bytes:
    values = _converted(array, np.dtype("<f4"), "BF16")
    bits = values.view("<u4")
    # Round to nearest, ties to even. NaN keeps a bit of its mantissa, so that it does not become an infinity.
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype("<u2")
    _check_range(values, (rounded.astype("<u4") << 16).view("<f4"), "BF16")
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded).astype("<u2").tobytes()


def decode(tensor: Mapping[str, Any]) -> tuple[str, Array]:
    """Returns the name and the array of a tensor's map.

    Raises `Malformed` if a field is missing, the datatype is unknown, or the data does not fit the shape.
    """
    if not isinstance(tensor, Mapping):
        raise Malformed(f"a tensor is a map, not {type(tensor).__name__}")
    try:
        name, shape, datatype, data = (tensor[field] for field in ("name", "shape", "datatype", "data"))
    except KeyError as missing:
        raise Malformed(f"a tensor has no field {missing}") from None
    if not isinstance(name, str):
        raise Malformed("a tensor's name is a text")
    if not isinstance(shape, (list, tuple)) or any(type(extent) is not int or extent < 0 for extent in shape):
        raise Malformed(f"tensor `{name}`: its shape is {shape!r}; it must be a list of extents")
    if len(shape) > MAX_RANK:
        raise Malformed(f"tensor `{name}` has {len(shape)} dimensions; at most {MAX_RANK} are allowed")
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise Malformed(f"tensor `{name}`: {datatype!r} is no datatype; it is one of {sorted(DATATYPES)}")
    count = 1
    for extent in shape:
        count *= extent
    if isinstance(data, (list, tuple)):
        return name, _from_list(name, shape, datatype, data)
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise Malformed(f"tensor `{name}`: its data is {type(data).__name__}; it must be bytes or an array")
    if datatype == "BYTES":
        return name, _shaped(name, _split(name, bytes(data), count), shape)
    width = 2 if datatype == "BF16" else _DTYPES[datatype].itemsize
    if len(data) != count * width:
        raise Malformed(f"tensor `{name}`: its shape {list(shape)} needs {count * width} bytes, and it has {len(data)}")
    if datatype == "BF16":
        bits = np.frombuffer(data, dtype="<u2").astype("<u4") << 16
        return name, _shaped(name, bits.view("<f4"), shape)
    return name, _shaped(name, np.frombuffer(data, dtype=_DTYPES[datatype]), shape)


def _shaped(name: str, array: Array, shape: Any) -> Array:
    try:
        return array.reshape(shape)
    except (ValueError, OverflowError) as error:
        # An array without elements may have any extents in a message, and not in numpy.
        raise Malformed(f"tensor `{name}`: no array has the shape {list(shape)}: {error}") from None


def _from_list(name: str, shape: Any, datatype: str, data: Any) -> Array:
    try:
        if datatype == "BYTES":
            array = _texts(np.array(_flat(data), dtype=object))
        else:
            array = _numbers(_flat(data), datatype)
        return array.reshape(shape)
    except (TypeError, ValueError, OverflowError, Malformed) as error:
        reason = error.message if isinstance(error, Malformed) else error
        raise Malformed(f"tensor `{name}`: its data is no array of {datatype} of shape {list(shape)}: {reason}") from None


def _numbers(elements: list[Any], datatype: str) -> Array:
    dtype = np.dtype("<f4") if datatype == "BF16" else _DTYPES[datatype]
    # numpy reads numbers from texts, and NaN from nothing.
    if not all(isinstance(element, (bool, int, float)) for element in elements):
        raise Malformed("an element is not a number")
    if dtype.kind in "iu" and all(isinstance(element, int) for element in elements):
        # numpy would make floats of large and small integers together.
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        if any(not low <= element <= high for element in elements):
            raise Malformed(f"an element does not fit {datatype}")
        return np.array(elements, dtype)
    return _converted(np.array(elements, None if elements else dtype), dtype, datatype)


def _flat(data: Any) -> list[Any]:
    flat: list[Any] = []
    for element in data:
        if isinstance(element, (list, tuple)):
            flat.extend(_flat(element))
        else:
            flat.append(element)
    return flat


def _split(name: str, data: bytes, count: int) -> Array:
    if count > len(data) // _LENGTH.size:
        raise Malformed(f"tensor `{name}`: {count} elements do not fit {len(data)} bytes")
    texts = np.empty(count, dtype=object)
    at = 0
    for index in range(count):
        end = at + _LENGTH.size
        if end > len(data):
            raise Malformed(f"tensor `{name}`: element {index} of {count} is missing")
        (length,) = _LENGTH.unpack_from(data, at)
        at = end + length
        if at > len(data):
            raise Malformed(f"tensor `{name}`: element {index} claims {length} bytes, and {len(data) - end} are left")
        texts[index] = data[end:at]
    if at != len(data):
        raise Malformed(f"tensor `{name}`: {len(data) - at} bytes follow its last element")
    return texts


def encode_all(tensors: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the maps of named values.

    Raises `Malformed` for more than 64 of them, or a value that is no array.
    """
    if not isinstance(tensors, Mapping):
        raise Malformed(f'the inputs are values by name, such as {{"text": ["a"]}}, not {type(tensors).__name__}')
    if len(tensors) > MAX_TENSORS:
        raise Malformed(f"{len(tensors)} tensors; a message holds at most {MAX_TENSORS}")
    return [encode(name, value) for name, value in tensors.items()]


def decode_all(tensors: Iterable[Mapping[str, Any]]) -> dict[str, Array]:
    """Returns arrays by name.

    Raises `Malformed` for an invalid tensor, a repeated name, or more than 64 tensors.
    """
    if not isinstance(tensors, (list, tuple)):
        raise Malformed("tensors are a list")
    if len(tensors) > MAX_TENSORS:
        raise Malformed(f"{len(tensors)} tensors; a message holds at most {MAX_TENSORS}")
    named: dict[str, Array] = {}
    for tensor in tensors:
        name, array = decode(tensor)
        if name in named:
            raise Malformed(f"tensor `{name}` is repeated")
        named[name] = array
    return named
