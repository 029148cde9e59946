"""Teaching: asking teachers for answers to prompts, and topping up what cleaning dropped."""
