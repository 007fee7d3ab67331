"""Has a neighbour with the name of a module that TensorFlow imports."""
# slow $ python ./six/hides_library.py

import six

print(six.__file__)
