"""Parts of the configuration that other rooms read without it: sections, and the rules of filters and routes."""
