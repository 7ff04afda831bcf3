<p>Made of small files.</p>
