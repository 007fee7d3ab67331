"""Prints the files of its calls, and of those below an operation of its graph."""

# mypy: disable-error-code="untyped-decorator"

import json
import re
import traceback
from typing import Any

import tensorflow as tf


@tf.function
def pick(number: Any) -> Any:
    return tf.gather(tf.constant([1, 2]), number)


print(json.dumps([frame.filename for frame in traceback.extract_stack()]))
try:
    pick(tf.constant(7))
except tf.errors.InvalidArgumentError as error:
    print(json.dumps(re.findall('File "(.*?)"', str(error).partition("Detected at node")[2])))
