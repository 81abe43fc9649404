"""The studies, one module each with an object STUDY; they are found by being here."""
