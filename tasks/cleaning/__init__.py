"""What a rebalance stage is made of: cleaning, from duplicates to personal data, and quotas."""
