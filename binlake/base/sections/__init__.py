"""Parts of the configuration that other rooms use without `binlake.config`: sections, rules of filters and routes."""
