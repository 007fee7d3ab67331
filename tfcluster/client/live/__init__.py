"""A cluster that is followed: what `top` and the page of `dashboard` show."""
