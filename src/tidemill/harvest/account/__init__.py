"""What the broker did, used up and cost others: records, the ledger of the grant, regular jobs' waits. Pure."""
