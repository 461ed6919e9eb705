"""An operator's commands over a target: its checkpoint, a DDL that is stuck, tables set aside."""
