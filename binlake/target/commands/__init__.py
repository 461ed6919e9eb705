"""An operator's commands for a target: its checkpoint, a blocked DDL, tables set aside."""
