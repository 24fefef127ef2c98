"""Pure planning: profile and nodes in, Plan or Infeasible out."""
