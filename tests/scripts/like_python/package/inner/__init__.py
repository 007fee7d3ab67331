other = __name__
