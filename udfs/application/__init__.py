"""What messages say to applications: headers of frameworks in the extension, and the forms of bodies."""
