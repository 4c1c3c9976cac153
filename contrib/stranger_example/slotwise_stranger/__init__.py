"""Components for Slotwise from outside its repository: attention `loop`, scheduler `shortest_prompt_first`."""
