"""dpsrm: train PyTorch models with differential privacy, by stochastic recursive momentum."""
