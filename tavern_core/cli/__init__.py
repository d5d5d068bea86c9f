"""The command line `tavern`: a door. It translates what a person typed and shows what came back; it decides nothing."""
